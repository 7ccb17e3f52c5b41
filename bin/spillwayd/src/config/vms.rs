//! Checks the settings of guests against each other.

use super::file::Error;
use super::values::Config;

/// Checks `[sections]` and each `[[vm]]`.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(config: &Config) -> Result<(), Error> {
    let Config { sections, vms, listen, .. } = config;
    let wrong = |line: &str| Err(Error::new(line));
    if vms.is_empty() {
        return match sections.lend_bytes {
            0 => Ok(()),
            _ => wrong("sections.lend: there is no [[vm]], so no section pool that could lend"),
        };
    }
    let section = sections.section_bytes;
    if !section.is_power_of_two() {
        return wrong("sections.section must be a power of two, such as \"128M\"");
    }
    if sections.capacity_bytes < section {
        return wrong(
            "sections.capacity: set the memory of all guests together, at least one section",
        );
    }
    if sections.lend_bytes > sections.capacity_bytes {
        let most = spillway_types::Size(sections.capacity_bytes);
        return Err(Error::new(format!(
            "sections.lend is more than sections.capacity: give at most {most}"
        )));
    }
    if sections.dir.is_none() {
        return wrong("sections.dir: set the directory of the guests' memory files");
    }
    for (at, vm) in vms.iter().enumerate() {
        let error = |line: String| Err(Error::new(format!("vm '{}': {line}", vm.name)));
        let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_dots = vm.name.chars().all(|c| c == '.');
        if !(1..=64).contains(&vm.name.len()) || !vm.name.chars().all(good) || is_dots {
            return error("a name is 1 to 64 of a-z, A-Z, 0-9, and . _ -".into());
        }
        if vm.boot_bytes % (2 << 20) != 0 {
            return error("boot must be a multiple of 2M".into());
        }
        let least = vm.least_bytes.unwrap_or(vm.boot_bytes);
        if least < vm.boot_bytes {
            return error("least is below boot, which the guest never returns".into());
        }
        if vm.most_bytes < least {
            return error("most is below least".into());
        }
        if vm.reserve_bytes >= vm.most_bytes {
            return error(
                "reserve must be below most: that much stays available in the guest".into(),
            );
        }
        if vm.boot_bytes > sections.capacity_bytes {
            return error("boot is more than sections.capacity".into());
        }
        if vm.qmp.is_some() && !vm.libvirt.is_empty() {
            return error(
                "qmp is for a VM that you start yourself, libvirt for a domain: set one of them"
                    .into(),
            );
        }
        if vm.libvirt_socket.is_some() && vm.libvirt.is_empty() {
            return error("libvirt_socket: also set libvirt, the name of the domain".into());
        }
        if vm.windows.is_some() && vm.client.is_empty() {
            return error("windows: also set client, the client of the guest's programs".into());
        }
        if vm.ivshmem.is_some() && vm.client.is_empty() {
            return error("ivshmem: also set client, the client of the guest's programs".into());
        }
        if !vm.client.is_empty() && !vm.libvirt.is_empty() {
            return error("client: libvirt domains can't have windows, because their memory has no file in the section pool".into());
        }
        if !vm.client.is_empty() && !config.clients.iter().any(|it| it.name == vm.client) {
            let name = &vm.client;
            return error(format!("there is no client '{name}': add a [[client]] with this name"));
        }
        for other in &vms[..at] {
            if other.name == vm.name {
                return error("the name is used twice".into());
            }
            if other.client == vm.client && !vm.client.is_empty() {
                return error(format!("vm '{}' has the same client", other.name));
            }
            if other
                .windows(listen)
                .is_some_and(|(_, path)| vm.windows(listen).is_some_and(|(_, own)| own == path))
            {
                return error(format!("vm '{}' has the same socket for windows", other.name));
            }
            if vm.ivshmem.is_some() && other.device(listen) == vm.device(listen) {
                return error(format!("vm '{}' has the same ivshmem file", other.name));
            }
            if other.way(listen) == vm.way(listen) && !vm.libvirt.is_empty() {
                return error(format!("vm '{}' has the same domain", other.name));
            }
            if other.way(listen) == vm.way(listen) || other.agent(listen) == vm.agent(listen) {
                return error(format!("vm '{}' has the same socket", other.name));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read;

    fn checked(text: &str) -> Result<(), String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        check(&read(Some(file.path()), &[]).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_does_not_hold_together_is_said() {
        let pool = "[sections]\ncapacity = \"8G\"\n";
        let vm = "[[vm]]\nname = \"a\"\n";
        let client = "[[client]]\nname = \"c\"\n";
        assert_eq!(checked(&format!("{pool}{vm}")), Ok(()));
        assert_eq!(checked(""), Ok(()));
        for (text, expected) in [
            (vm.to_owned(), "sections.capacity"),
            (format!("{pool}section = \"96M\"\n{vm}"), "power of two"),
            (format!("{pool}lend = \"9G\"\n{vm}"), "sections.lend is more"),
            ("[sections]\nlend = \"1G\"\n".to_owned(), "there is no [[vm]]"),
            (format!("{pool}[[vm]]\n"), "a name is 1 to 64"),
            (format!("{pool}[[vm]]\nname = \"..\"\n"), "a name is 1 to 64"),
            (format!("{pool}{vm}boot = \"65M\"\n"), "multiple of 2M"),
            (format!("{pool}{vm}least = \"256M\"\n"), "below boot"),
            (format!("{pool}{vm}most = \"256M\"\n"), "most is below least"),
            (format!("{pool}{vm}reserve = \"4G\"\n"), "reserve must be below most"),
            (format!("{pool}{vm}boot = \"9G\"\nmost = \"9G\"\n"), "more than sections.capacity"),
            (format!("{pool}{vm}{vm}"), "used twice"),
            (format!("{pool}{vm}[[vm]]\nname = \"b\"\nqmp = \"a.qmp.sock\"\n"), "same socket"),
            (format!("{pool}{vm}qmp = \"q\"\nlibvirt = \"a\"\n"), "set one of them"),
            (format!("{pool}{vm}libvirt_socket = \"/s\"\n"), "the name of the domain"),
            (format!("{pool}{vm}windows = \"w\"\n"), "also set client"),
            (format!("{pool}{vm}ivshmem = \"/f\"\n"), "also set client"),
            (format!("{pool}{vm}client = \"c\"\n"), "there is no client 'c'"),
            (
                format!(
                    "{client}[[client]]\nname = \"e\"\n{pool}{vm}client = \"c\"\nivshmem = \"/f\"\n\
                     [[vm]]\nname = \"b\"\nclient = \"e\"\nivshmem = \"/f\"\n"
                ),
                "has the same ivshmem file",
            ),
            (format!("{client}{pool}{vm}client = \"c\"\nlibvirt = \"d\"\n"), "can't have windows"),
            (
                format!("{client}{pool}{vm}client = \"c\"\n[[vm]]\nname = \"b\"\nclient = \"c\"\n"),
                "has the same client",
            ),
            (
                format!("{pool}{vm}libvirt = \"d\"\n[[vm]]\nname = \"b\"\nlibvirt = \"d\"\n"),
                "same domain",
            ),
        ] {
            let line = checked(&text).unwrap_err();
            assert!(line.contains(expected), "{text:?}: {line}");
        }
    }
}
