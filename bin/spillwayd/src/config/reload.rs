//! Applies a changed file while the daemon runs.

use super::field::Setting;
use super::table::{LEND, LISTEN, MEMORY, PROCESS, SECTIONS, STORE, UNNAMED, VM};
use super::table_resp::RESP;
use super::values::Config;

/// Names of settings that differ but that a reload can't change.
pub fn needs_restart(old: &Config, new: &Config) -> Vec<String> {
    let (mut old, mut new) = (old.clone(), new.clone());
    let mut names = Vec::new();
    differing(&STORE, "store", &mut old.store, &mut new.store, &mut names);
    differing(&LISTEN, "listen", &mut old.listen, &mut new.listen, &mut names);
    differing(&RESP, "resp", &mut old.resp, &mut new.resp, &mut names);
    differing(&PROCESS, "process", &mut old.process, &mut new.process, &mut names);
    differing(&MEMORY, "memory", &mut old.memory, &mut new.memory, &mut names);
    differing(&UNNAMED, "unnamed", &mut old.unnamed, &mut new.unnamed, &mut names);
    differing(&LEND, "lend", &mut old.lend, &mut new.lend, &mut names);
    differing(&SECTIONS, "sections", &mut old.sections, &mut new.sections, &mut names);
    if old.vms.len() != new.vms.len() {
        names.push("vm".to_owned());
    }
    for (old, new) in old.vms.iter_mut().zip(&mut new.vms) {
        let mut changed = Vec::new();
        differing(&VM, "vm", old, new, &mut changed);
        names.extend(changed.into_iter().map(|name| format!("{name} of '{}'", old.name)));
    }
    if old.disks != new.disks {
        names.push("disk".to_owned());
    }
    if old.peers != new.peers {
        names.push("peer".to_owned());
    }
    names
}

fn differing<T>(
    settings: &[Setting<T>],
    section: &str,
    old: &mut T,
    new: &mut T,
    names: &mut Vec<String>,
) {
    let fixed = settings.iter().filter(|setting| !setting.live);
    let changed = fixed.filter(|setting| setting.field.show(old) != setting.field.show(new));
    names.extend(changed.map(|setting| format!("{section}.{}", setting.name)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read;

    #[test]
    fn only_what_can_not_change_is_named() {
        let old = read(None, &[]).unwrap();
        let set = |text: &str| read(None, &[text.to_owned()]).unwrap();
        assert_eq!(needs_restart(&old, &set("store.capacity=1G")), ["store.capacity"]);
        assert_eq!(needs_restart(&old, &set("listen.nbd=x")), ["listen.nbd"]);
        assert!(needs_restart(&old, &set("unnamed.grace_s=1")).is_empty());
        assert!(needs_restart(&old, &old).is_empty());
    }
}
