//! The real machine and the model, in lockstep.

use std::ops::Deref;

use spillway_guests::{Action, Event, Guest, Settings};

use crate::model::Model;

pub struct Pair {
    real: Guest,
    pub model: Model,
}

impl Pair {
    pub fn new(settings: Settings) -> Self {
        Self { real: Guest::new(settings.clone()), model: Model::new(settings) }
    }

    /// Both process the event. Panics unless their actions and their views are the same.
    pub fn handle(&mut self, now_us: u64, event: Event) -> Vec<Action> {
        let Self { real, model } = self;
        let mut actions = Vec::new();
        real.handle(now_us, event.clone(), &mut actions);
        model.handle(now_us, event.clone());
        model.compare(&actions, &event);
        assert_eq!(real.view(), model.view(), "after {event:?}");
        assert_eq!(real.wake_at_us(now_us), model.wakes_at(now_us), "after {event:?}");
        assert_eq!(real.lacks_bytes(), model.lacks(), "after {event:?}");
        assert_eq!(real.settings(), &model.settings);
        assert_eq!(real.wanted_bytes(), model.view().wanted_bytes);
        let under_way = model.change.as_ref().map(|change| change.order);
        assert_eq!(real.running().is_some(), under_way.is_some(), "after {event:?}");
        actions
    }
}

/// Other calls go to the real machine.
impl Deref for Pair {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.real
    }
}
