"""Known vulnerabilities of the pinned packages, by pip-audit: `make audit`. Fails on a finding, not on a silent registry."""

import json
import subprocess
import sys

COMMAND = ["pip_audit", "-r", "constraints.txt", "--no-deps", "--disable-pip", "--format", "json"]
done = subprocess.run([sys.executable, "-m", *COMMAND], capture_output=True, text=True, timeout=300)
if not done.stdout:
    print(f"audit: pip-audit gave no answer; nothing was audited\n{done.stderr[-2000:]}")
    sys.exit(0 if "ConnectionError" in done.stderr or "ServiceError" in done.stderr else 1)

packages = json.loads(done.stdout)["dependencies"]
known = [p for p in packages if "vulns" in p]
found = [(p, v) for p in known for v in p["vulns"]]
for package, v in found:
    print(
        f"audit: {package['name']} {package['version']}: {v['id']}, mended in {', '.join(v['fix_versions']) or 'no version'}"
    )
print(
    f"audit: {len(known)} of {len(packages)} pinned packages audited, {len(found)} known vulnerabilities"
    + ("" if known else "; the registry answers no questions about vulnerabilities")
)
sys.exit(1 if found else 0)
