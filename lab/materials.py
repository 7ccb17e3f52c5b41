"""The bills of materials that come with packages."""

import json

import lab

# Each of them, and a crate that it names.
MATERIALS = {"spillway": "clap", "spillwayd": "tokio", "spillway-agent": "rustix", "spillway-preload": "rustix",
             "libspillway": "rustix", "spillway-valkey": "rustix"}


def check_bill(name, bill, crate):
    """It is of that program, names the crate, and has version and license of each crate."""
    parts = {part["name"]: part for part in bill["components"]}
    if bill["bomFormat"] != "CycloneDX" or bill["metadata"]["component"]["name"] != name or crate not in parts:
        lab.fail(f"the bill of {name} is of {bill['metadata']['component']} and does not name {crate}")
    if poor := [part for part in parts.values() if not part.get("version") or not part.get("licenses")]:
        lab.fail(f"the bill of {name}: {poor}")
    print(f"the bill of {name}: {len(parts)} crates")


def check_materials(folder):
    """Each program of the packages has its bill in the folder."""
    for name, crate in MATERIALS.items():
        if not (bill := folder / f"{name}.cdx.json").exists():
            lab.fail(f"{folder} has no {bill.name}")
        check_bill(name, json.loads(bill.read_text()), crate)
