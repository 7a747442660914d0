// Search needs a worker, and browsers refuse one to a page that was opened from disk. There, a hidden frame is one:
// the theme's own worker script runs in it. (Material fetches a script for this from a CDN; here nothing is fetched.)
if (location.protocol === "file:") {
  window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      this.frame = frame
      this.ready = new Promise((done) => {
        this.inside.loaded = done
      })
      this.inside.reply = (data) => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      const script = `
        window.postMessage = (data) => reply(JSON.parse(JSON.stringify(data)))
        window.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {
          const one = document.createElement("script")
          one.src = url
          one.onload = done
          document.body.appendChild(one)
        })), Promise.resolve())`
      const page = this.inside.document
      page.open()
      page.write(`<html><body><script>${script}</scr` + `ipt><script src="${url}" onload="loaded()"></scr` + `ipt></body></html>`)
      page.close()
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data: JSON.parse(JSON.stringify(data)) })))
    }
    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
