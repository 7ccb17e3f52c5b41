//! Logs the notes of the state machine.

use spillway_lending::{CopyLocation, HostId, Note};

use crate::peers::Peers;

/// Logs a note, with the addresses of its hosts.
pub fn log(note: &Note, peers: &Peers) {
    let at = |host: &HostId| {
        let address = peers.address(host);
        address.map_or_else(|| "unknown".to_owned(), |address| address.to_string())
    };
    match note {
        Note::Role { from, to } => {
            let (from, to) = (format!("{from:?}"), format!("{to:?}"));
            tracing::info!("role: {} to {}", from.to_lowercase(), to.to_lowercase());
        }
        Note::Asked { loan, lender, slabs } => {
            tracing::info!(%loan, %lender, address = at(lender), slabs, "requested a loan");
        }
        Note::Granted { loan, lender } => {
            tracing::info!(%loan, %lender, address = at(lender), "the loan is granted")
        }
        Note::Refused { loan, lender, reason: Some(reason) } => {
            tracing::info!(%loan, %lender, address = at(lender), ?reason, "the loan is refused");
        }
        Note::Refused { loan, lender, reason: None } => {
            tracing::warn!(%loan, %lender, address = at(lender), "no answer to the request for a loan");
        }
        Note::Short { device, wanted, got } => {
            tracing::warn!(%device, wanted, got, "found less than requested for a device");
        }
        Note::CannotBorrow { why } => tracing::warn!("can't borrow: {why}"),
        Note::Lent { loan, slabs } => {
            tracing::info!(%loan, address = at(&loan.borrower), slabs, "lent")
        }
        Note::Rejected { loan, reason } => {
            tracing::info!(%loan, address = at(&loan.borrower), ?reason, "refused to lend");
        }
        Note::ReserveFailed { loan, error } => {
            tracing::warn!(%loan, address = at(&loan.borrower), "can't reserve memory for a loan: {error}");
        }
        Note::Recalling { loan, deadline } => {
            tracing::info!(%loan, address = at(&loan.borrower), deadline_s = deadline.as_secs(), "recalling a loan");
        }
        Note::Recalled { loan, lender, deadline } => {
            tracing::info!(%loan, %lender, address = at(lender), deadline_s = deadline.as_secs(), "the lender wants it back");
        }
        Note::Expired { loan } => {
            tracing::warn!(%loan, address = at(&loan.borrower), "the borrower did not renew or return it in time: its memory is taken back");
        }
        Note::LoanLost { loan, lender } => {
            tracing::error!(%loan, %lender, address = at(lender), "the loan is lost")
        }
        Note::Ended { loan, with } => {
            tracing::info!(%loan, peer = %with, address = at(with), "the loan has ended");
        }
        Note::SlabLost { device, slab } => {
            tracing::error!(%device, slab, "no copy of a slab is left: programs whose pages were there are lost");
        }
        Note::Moved { device, slab, copy, place } => {
            tracing::debug!(%device, slab, copy, place = %shown(place), "moved");
        }
        Note::MoveSlow { device, slab, place, took } => {
            let (place, took_s) = (shown(place), took.as_secs());
            tracing::warn!(%device, slab, place, took_s, "moving a slab takes long: its lender or the new one hardly answers");
        }
        Note::MoveFailed { device, slab, error } => {
            tracing::warn!(%device, slab, "a slab can't be moved: {error}");
        }
        Note::Attached { device, slabs } => tracing::info!(%device, slabs, "the device is in use"),
        Note::AttachFailed { device, error } => {
            tracing::error!(%device, "can't create a device: {error}");
        }
        Note::Detached { device } => tracing::info!(%device, "the device is returned"),
        Note::DetachFailed { device, error } => {
            tracing::error!(%device, "can't return a device yet: {error}");
        }
    }
}

fn shown(place: &CopyLocation) -> String {
    match place {
        CopyLocation::Lender { loan, index } => format!("slab {index} of {loan}"),
        CopyLocation::File => "file".to_owned(),
    }
}
