//! Statistical tests with fixed seeds: both rules give the target's law, and the same harness refuses
//! rules that do not.

mod acceptance;
mod broken_drafts;
mod exact;
mod faulty;
mod fit;
mod joint;
mod judge;
mod misleading;
mod requests;
