(function () {
  "use strict";
  var dark = matchMedia("(prefers-color-scheme: dark)");
  var font = 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif';
  var config = {
    displaylogo: false, showTips: false, displayModeBar: "hover", modeBarButtons: [["toImage", "zoom2d", "resetScale2d"]],
    showSendToCloud: false, plotlyServerURL: ""  // recent Plotly offers to upload a figure, unless told not to
  };

  // the value that report.css gives a colour in the scheme of the moment
  function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); }

  // "@c0" below a key that speaks of colour becomes a colour; every other text is left as it is
  function coloured(value, under) {
    if (Array.isArray(value)) return value.map(function (v) { return coloured(v, under); });
    if (value && typeof value === "object") {
      var out = {};
      Object.keys(value).forEach(function (k) { out[k] = coloured(value[k], under || k.indexOf("color") >= 0); });
      return out;
    }
    return under && typeof value === "string" && value[0] === "@" ? colour(value.slice(1)) : value;
  }

  function axis(own, width) {
    var base = {
      gridcolor: "@grid", zeroline: false, linecolor: "@rule", tickcolor: "@rule", tickfont: { color: "@soft", size: 12 },
      automargin: true, nticks: width < 420 ? 5 : 7
    };
    var out = Object.assign(base, own);
    if (out.title) out.title = Object.assign({ font: { color: "@soft", size: 12 }, standoff: 10 }, out.title);
    return out;
  }

  function draw() {
    document.querySelectorAll(".panel:not([hidden]) > .plot").forEach(function (place) {
      var figure = JSON.parse(place.nextElementSibling.textContent);
      var layout = Object.assign({
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: font, size: 13, color: "@ink" },
        margin: { l: 52, r: 12, t: 14, b: 44 }, showlegend: false, hovermode: "closest",
        hoverlabel: {
          bgcolor: "@surface", bordercolor: "@rule", font: { family: font, size: 12.5, color: "@ink" }, align: "left"
        },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: "@soft", activecolor: "@c0" },
        height: place.clientHeight, width: place.clientWidth
      }, figure.layout);
      layout.xaxis = axis(layout.xaxis, place.clientWidth);
      layout.yaxis = axis(layout.yaxis, 999);
      var traces = figure.data.map(function (t) {
        var bar = { thickness: 10, outlinewidth: 0, tickfont: { color: "@soft", size: 11 }, nticks: 6 };
        var own = t.type === "heatmap" ? t : t.marker && t.marker.colorbar ? t.marker : null;
        if (own) own.colorbar = Object.assign(bar, own.colorbar);
        return t;
      });
      layout.annotations = (layout.annotations || []).filter(function (a) {  // numbers, where cells of a map have room
        return a.name !== "cell" || layout.width >= 64 * (traces[0].x.length + 2);
      });
      Plotly.react(place, coloured(traces, false), coloured(layout, false), config);
    });
  }

  function print(on) {
    document.documentElement.classList.toggle("printing", on);
    draw();
  }

  document.querySelectorAll(".choice select").forEach(function (select) {
    var panels = select.closest(".card").querySelectorAll(".panel");
    function show() {
      panels.forEach(function (panel, i) { panel.hidden = i !== select.selectedIndex; });
      draw();
    }
    select.addEventListener("change", show);
    if (select.selectedIndex > 0) show();  // a browser remembers it when the page is loaded again
  });

  var waiting = 0;
  function later() { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw); }
  draw();
  dark.addEventListener("change", later);
  addEventListener("resize", later);
  addEventListener("beforeprint", function () { print(true); });
  addEventListener("afterprint", function () { print(false); });
})();
