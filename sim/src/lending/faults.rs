//! Faults, and the memory demand of programs.

use spillway_lending::Order;

use super::world::{What, World};

impl World {
    /// Injects a fault, and schedules the next one.
    pub fn fault(&mut self) {
        if self.is_calm {
            return;
        }
        let in_us = 3_000_000 + self.random.below(20_000_000);
        self.schedule(in_us, 0, None, What::Fault);
        let at = self.random.below(self.hosts.len() as u64) as usize;
        if !self.hosts[at].is_up() {
            return;
        }
        let lasts_us = 200_000 + self.random.below(25_000_000);
        let until_us = self.now_us + lasts_us;
        self.summary.faults += 1;
        match self.random.below(9) {
            0..2 => self.cut(at, until_us),
            2 => {
                let host = &mut self.hosts[at];
                host.paused_until_us = host.paused_until_us.max(until_us);
                self.strike_all_of(at, until_us);
            }
            3 => self.crash(at, lasts_us, true),
            4..6 => self.crash(at, lasts_us, false),
            6 => self.hosts[at].is_slow = !self.hosts[at].is_slow,
            7 => self.lose_file(at),
            _ => {
                let order = [Order::Borrow(3), Order::Return, Order::Drain, Order::Resume];
                let order = order[self.random.below(4) as usize];
                self.schedule(0, at, None, What::Operator(order));
            }
        }
    }

    /// Cuts a host off, in one direction or both.
    fn cut(&mut self, at: usize, until_us: u64) {
        let host = &mut self.hosts[at];
        let way = self.random.below(3);
        if way != 0 {
            host.mute_until_us = until_us;
        }
        if way != 1 {
            host.deaf_until_us = until_us;
        }
    }

    fn crash(&mut self, at: usize, lasts_us: u64, keeps_store: bool) {
        if !keeps_store {
            self.hit_all_in(at);
        }
        self.stop(at);
        let host = &mut self.hosts[at];
        (host.paused_until_us, host.mute_until_us, host.deaf_until_us) = (0, 0, 0);
        self.schedule(lasts_us, at, None, What::Restart { keeps_store });
    }

    /// Changes the memory demand of the programs of a host.
    pub fn change_demand(&mut self) {
        if self.is_calm {
            return;
        }
        let hosts = self.hosts.len() as u64;
        let in_us = 1_000_000 + self.random.below(40_000_000 / hosts);
        self.schedule(in_us, 0, None, What::Demand);
        let at = self.random.below(hosts) as usize;
        let percent = match self.random.below(5) {
            0 => self.random.between(85, 130),
            1 => self.random.between(60, 90),
            _ => self.random.between(10, 50),
        };
        let host = &mut self.hosts[at];
        host.demand_bytes = host.total_bytes / 100 * percent;
    }

    /// Repairs all faults. The demand stays as it is.
    pub fn mend(&mut self) {
        self.is_calm = true;
        (self.loss_permille, self.late_permille) = (0, 0);
        for host in &mut self.hosts {
            (host.mute_until_us, host.deaf_until_us) = (0, 0);
            host.is_slow = false;
        }
    }

    /// Lowers the demand of all hosts, and has them return what they borrowed.
    pub fn calm_down(&mut self) {
        for at in 0..self.hosts.len() {
            let host = &mut self.hosts[at];
            host.demand_bytes = host.total_bytes / 10 * 2;
            for order in [Order::Return, Order::Resume] {
                self.schedule(30_000_000, at, None, What::Operator(order));
            }
        }
    }
}
