//! Removes from the blade what nobody needs any more, outside the path of any page.

use super::{Blade, Carried, OBJECTS_MAX, WORD_BITS, now_ns};
use crate::sync::Ordering;
use spillway_types::Key;

impl Blade {
    /// Removes freed values from the blade, up to `most`, and objects that nobody holds any more.
    /// Gives how many values there were. Values that a blade refuses to remove are tried again by the next call. Not for the path of a page: it waits for the blade.
    pub fn tidy(&self, most: usize) -> usize {
        let up = self.carriers().any(|carrier| !carrier.is_down());
        if !up || self.untidy.swap(0, Ordering::Relaxed) == 0 {
            return 0;
        }
        let (began_ns, down) = (now_ns(), self.down());
        let mut removed = 0;
        for place in 0..OBJECTS_MAX as u16 {
            removed += self.tidy_object(place, most - removed);
            if removed >= most {
                self.untidy.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        if self.down() != down {
            self.note_stall(now_ns() - began_ns, down);
        }
        removed
    }

    fn tidy_object(&self, place: u16, most: usize) -> usize {
        let mut object = self.objects[usize::from(place)].lock();
        if object.name == 0 || object.dead_count == 0 && (object.live > 0 || object.grows) {
            return 0;
        }
        if object.live == 0 && !object.grows {
            object.name = 0;
            let gone = if let Some(dead) = &mut object.dead {
                for word in 0..dead.len() {
                    *dead.get_mut(word) = 0;
                }
                self.ledger.let_go(self.holder(), place)
            } else {
                None
            };
            drop(object);
            if let Some(name) = gone {
                self.carriers().for_each(|carrier| _ = carrier.flush_object(name));
            }
            return 1;
        }
        if object.shared {
            if !self.ledger.is_sole(self.holder(), place) {
                // Looked at again when something is freed: the others may have ended.
                return 0;
            }
            object.shared = false;
        }
        let mut keys = [Key::new(0, 0); 2 * WORD_BITS as usize];
        let count = object.take_dead(&mut keys, most);
        drop(object);
        if count == 0 {
            return 0;
        }
        let keys = &keys[..count];
        let mut is_refused = false;
        for carrier in self.carriers() {
            is_refused |= carrier.flush(keys) == Carried::Refused;
        }
        self.untidy.fetch_add(1, Ordering::Relaxed);
        if is_refused {
            let mut object = self.objects[usize::from(place)].lock();
            keys.iter().for_each(|key| object.put_back(*key));
            return 0;
        }
        count
    }
}
