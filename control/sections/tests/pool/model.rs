//! Compares the pool with a model that consists of sets of sections, over random requests, guests and restarts.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use spillway_sections::{Error, GuestFile, Pool};

use crate::common::{Mapping, SECTION, TestFolder, allocated};

/// Sections of the pool.
const CAPACITY: u64 = 8;
const GUESTS: [&str; 2] = ["a", "b"];

#[derive(Clone, Debug)]
enum Step {
    CreateBoot {
        guest: usize,
        sections: u64,
    },
    CreateDevice {
        guest: usize,
        device: u8,
        sections: u64,
    },
    Reserve {
        guest: usize,
        device: u8,
        sections: u64,
    },
    /// The guest plugs reserved memory, lowest first.
    Plug {
        guest: usize,
        device: u8,
        sections: u64,
    },
    /// It unplugs some of its memory, and QEMU punches it.
    Unplug {
        guest: usize,
        device: u8,
        which: u64,
        sections: u64,
    },
    Settle {
        guest: usize,
        device: u8,
    },
    Reset {
        guest: usize,
    },
    Clear {
        guest: usize,
    },
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (guest, device) = (0..GUESTS.len(), prop_oneof![3 => Just(1u8), 1 => Just(2u8)]);
    let file = (guest.clone(), device);
    let step = prop_oneof![
        2 => (guest.clone(), 1..6u64).prop_map(|(guest, sections)| Step::CreateBoot { guest, sections }),
        3 => (file.clone(), 1..9u64).prop_map(|((guest, device), sections)| Step::CreateDevice { guest, device, sections }),
        6 => (file.clone(), 1..6u64).prop_map(|((guest, device), sections)| Step::Reserve { guest, device, sections }),
        5 => (file.clone(), 1..6u64).prop_map(|((guest, device), sections)| Step::Plug { guest, device, sections }),
        4 => (file.clone(), 0..8u64, 1..5u64).prop_map(|((guest, device), which, sections)| Step::Unplug { guest, device, which, sections }),
        5 => file.prop_map(|(guest, device)| Step::Settle { guest, device }),
        1 => guest.clone().prop_map(|guest| Step::Reset { guest }),
        1 => guest.prop_map(|guest| Step::Clear { guest }),
        1 => Just(Step::Reopen),
    ];
    vec(step, 1..50)
}

/// A device: the sections that its file holds, and those that the guest has plugged.
#[derive(Default)]
struct Device {
    bound: u64,
    counted: u64,
    held: BTreeSet<u64>,
    plugged: BTreeSet<u64>,
    /// Memory was punched but not settled yet: the model does not know where the pool finds holes.
    unsettled: bool,
    /// An earlier daemon may have left reserved memory.
    is_left: bool,
}

#[derive(Default)]
struct Guest {
    boot: u64,
    devices: BTreeMap<u8, Device>,
}

struct World<'a> {
    folder: &'a TestFolder,
    pool: Option<Pool>,
    guests: BTreeMap<&'static str, Guest>,
}

impl World<'_> {
    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    fn free(&self) -> u64 {
        let devices =
            |guest: &Guest| guest.devices.values().map(|device| device.counted).sum::<u64>();
        CAPACITY - self.guests.values().map(|guest| guest.boot + devices(guest)).sum::<u64>()
    }

    fn mapping(&self, guest: &str, device: u8) -> Mapping {
        Mapping::of(&self.pool().path(guest, GuestFile::Device(device)).unwrap())
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::CreateBoot { guest, sections } => self.create_boot(GUESTS[guest], sections),
            Step::CreateDevice { guest, device, sections } => {
                self.create_device(GUESTS[guest], device, sections);
            }
            Step::Reserve { guest, device, sections } => {
                self.reserve(GUESTS[guest], device, sections)
            }
            Step::Plug { guest, device, sections } => self.plug(GUESTS[guest], device, sections),
            Step::Unplug { guest, device, which, sections } => {
                self.unplug(GUESTS[guest], device, which, sections);
            }
            Step::Settle { guest, device } => self.settle(GUESTS[guest], device),
            Step::Reset { guest } => self.reset(GUESTS[guest]),
            Step::Clear { guest } => self.clear(GUESTS[guest]),
            Step::Reopen => self.reopen(),
        }
    }

    fn create_boot(&mut self, name: &'static str, sections: u64) {
        let result = self.pool().create(name, GuestFile::Boot, sections * SECTION);
        let free = self.free();
        match self.guests.get(name).map_or(0, |guest| guest.boot) {
            0 if sections > free => assert!(matches!(result, Err(Error::Dry { .. }))),
            0 => {
                let mapping = Mapping::of(&result.unwrap());
                for section in 0..sections {
                    assert!(mapping.reads(section, 0), "boot memory of {name} is not zero");
                    mapping.write(section, pattern(name, 0, section));
                }
                self.guests.entry(name).or_default().boot = sections;
            }
            boot if boot == sections => drop(result.unwrap()),
            _ => assert!(matches!(result, Err(Error::OtherSize { .. }))),
        }
    }

    fn create_device(&mut self, name: &'static str, number: u8, sections: u64) {
        let file = GuestFile::Device(number);
        let result = self.pool().create(name, file, sections * SECTION);
        match self.guests.get(name).and_then(|guest| guest.devices.get(&number)) {
            Some(device) if device.bound != sections => {
                assert!(matches!(result, Err(Error::OtherSize { .. })));
            }
            Some(_) => drop(result.unwrap()),
            None => {
                result.unwrap();
                let device = Device { bound: sections, ..Device::default() };
                self.guests.entry(name).or_default().devices.insert(number, device);
            }
        }
    }

    fn reserve(&mut self, name: &'static str, number: u8, sections: u64) {
        let device = self.guests.get(name).and_then(|guest| guest.devices.get(&number));
        if device.is_some_and(|device| device.is_left) {
            self.settle(name, number);
        }
        let result = self.pool().reserve(name, number, sections * SECTION);
        let (free, mapping) =
            (self.free(), self.has(name, number).then(|| self.mapping(name, number)));
        let Some(device) = self.device(name, number) else {
            assert!(matches!(result, Err(Error::NoFile { .. })));
            return;
        };
        if sections > device.bound - device.counted {
            assert!(matches!(result, Err(Error::BeyondBound { .. })), "{result:?}");
            return;
        }
        if sections > free {
            let dry = matches!(result, Err(Error::Dry { free_bytes, .. }) if free_bytes == free * SECTION);
            assert!(dry, "{result:?}");
            return;
        }
        device.counted += sections;
        assert_eq!(result.unwrap(), device.counted * SECTION);
        let holes = (0..device.bound).filter(|section| !device.held.contains(section));
        let lowest: Vec<_> = holes.take(sections as usize).collect();
        if device.unsettled {
            // Any holes may be filled: look which. Plugged sections are known, and the pool may not have touched them.
            let mapping = mapping.unwrap();
            let holds = |section: &u64| {
                let held = mapping.take(section * SECTION, SECTION) == SECTION;
                if held {
                    mapping.allocate(section * SECTION, SECTION);
                }
                held
            };
            let unplugged = (0..device.bound).filter(|section| !device.plugged.contains(section));
            let held: BTreeSet<_> = unplugged.filter(holds).collect();
            assert!(held.is_superset(&(&device.held - &device.plugged)));
            let before = device.held.len();
            device.held.extend(held);
            assert_eq!(device.held.len(), before + sections as usize);
        } else {
            device.held.extend(lowest);
        }
    }

    fn plug(&mut self, name: &'static str, number: u8, sections: u64) {
        if !self.has(name, number) {
            return;
        }
        let mapping = self.mapping(name, number);
        let device = self.device(name, number).unwrap();
        let ready: Vec<_> =
            (&device.held - &device.plugged).into_iter().take(sections as usize).collect();
        for section in ready {
            assert!(mapping.reads(section, 0), "section {section} of {name} is not zero");
            mapping.write(section, pattern(name, number, section));
            device.plugged.insert(section);
        }
    }

    fn unplug(&mut self, name: &'static str, number: u8, which: u64, sections: u64) {
        if !self.has(name, number) {
            return;
        }
        let mapping = self.mapping(name, number);
        let device = self.device(name, number).unwrap();
        let going: Vec<_> = device
            .plugged
            .iter()
            .copied()
            .skip(which as usize % 4)
            .take(sections as usize)
            .collect();
        for section in going {
            mapping.punch(section * SECTION, SECTION);
            device.plugged.remove(&section);
            device.held.remove(&section);
            device.unsettled = true;
        }
    }

    fn settle(&mut self, name: &'static str, number: u8) {
        let size = self.device(name, number).map_or(0, |device| device.plugged.len() as u64);
        let result = self.pool().settle_device(name, number, size * SECTION);
        let Some(device) = self.device(name, number) else {
            assert!(matches!(result, Err(Error::NoFile { .. })));
            return;
        };
        // Reserved memory that was not plugged is released.
        device.held.clone_from(&device.plugged);
        let settled = result.unwrap();
        let counted = device.held.len() as u64;
        assert_eq!(settled.set_aside_bytes, counted * SECTION);
        assert_eq!(settled.released_bytes, (device.counted - counted) * SECTION);
        device.counted = counted;
        device.unsettled = false;
        device.is_left = false;
    }

    /// The guest is reset: QEMU punches all of its devices.
    fn reset(&mut self, name: &'static str) {
        let numbers: Vec<_> = self
            .guests
            .get(name)
            .into_iter()
            .flat_map(|guest| guest.devices.keys().copied())
            .collect();
        for number in numbers {
            let mapping = self.mapping(name, number);
            let device = self.device(name, number).unwrap();
            mapping.punch(0, device.bound * SECTION);
            device.held.clear();
            device.plugged.clear();
            device.unsettled = true;
        }
    }

    fn clear(&mut self, name: &'static str) {
        let free = self.free();
        let released = self.pool().clear(name).unwrap();
        self.guests.remove(name);
        assert_eq!(released, (self.free() - free) * SECTION);
    }

    fn reopen(&mut self) {
        self.pool = None;
        self.pool = Some(self.folder.pool(CAPACITY));
        for device in self.guests.values_mut().flat_map(|guest| guest.devices.values_mut()) {
            device.counted = device.held.len() as u64;
            device.unsettled = false;
            device.is_left = true;
        }
    }

    fn has(&self, name: &str, number: u8) -> bool {
        self.guests.get(name).is_some_and(|guest| guest.devices.contains_key(&number))
    }

    fn device(&mut self, name: &str, number: u8) -> Option<&mut Device> {
        self.guests.get_mut(name)?.devices.get_mut(&number)
    }

    /// Accounts and files match the model, and guests' data is intact.
    fn compare(&self) {
        let usage = self.pool().usage();
        assert!(usage.used_bytes <= usage.capacity_bytes);
        assert_eq!(usage.free_bytes, self.free() * SECTION);
        assert_eq!(usage.used_bytes + usage.free_bytes, CAPACITY * SECTION);
        assert!(usage.guests.keys().eq(self.guests.keys()));
        for (name, guest) in &self.guests {
            let found = &usage.guests[*name];
            assert_eq!(found.boot_bytes, guest.boot * SECTION);
            assert!(found.devices.keys().eq(guest.devices.keys()));
            if guest.boot > 0 {
                let mapping = Mapping::of(&self.pool().path(name, GuestFile::Boot).unwrap());
                assert!(
                    (0..guest.boot)
                        .all(|section| mapping.reads(section, pattern(name, 0, section)))
                );
            }
            for (&number, device) in &guest.devices {
                let account = found.devices[&number];
                assert_eq!(account.set_aside_bytes, device.counted * SECTION);
                assert_eq!(account.bound_bytes, device.bound * SECTION);
                let path = self.pool().path(name, GuestFile::Device(number)).unwrap();
                assert_eq!(allocated(&path), device.held.len() as u64 * SECTION);
                let mapping = Mapping::of(&path);
                let intact =
                    |&section: &u64| mapping.reads(section, pattern(name, number, section));
                assert!(device.plugged.iter().all(intact), "{name} lost memory of device {number}");
            }
        }
    }
}

/// The value that a guest writes.
fn pattern(name: &str, file: u8, section: u64) -> u64 {
    u64::from(name.as_bytes()[0]) << 32 | u64::from(file) << 16 | (section + 1)
}

/// Compares pool and model over this many random runs, each in its own folder.
pub fn check(runs: u32, folder: impl Fn() -> TestFolder) {
    let config = Config { cases: runs, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&steps(), |steps| {
        let folder = folder();
        let pool = Some(folder.pool(CAPACITY));
        let mut world = World { folder: &folder, pool, guests: BTreeMap::new() };
        world.create_device(GUESTS[0], 1, CAPACITY);
        for step in &steps {
            world.take(step);
            world.compare();
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_pool_is_what_its_model_is() {
    check(48, TestFolder::shm);
}
