//! Scripted targets and drafters, a leak tracker, and the conformance suite that every drafter runs.
//!
//! Nothing here serves requests: the scripted target reads ids on the host, so its forwards wait.

mod automaton;
mod broken;
mod compare;
pub mod conformance;
mod drafters;
mod drive;
mod exact;
mod faults;
mod first_tokens;
mod fit;
mod lookup;
mod pairs;
mod play;
mod rotation;
mod scripted;
mod sum;
mod table;
mod tracker;

pub use automaton::{Automaton, Watch};
pub use broken::{Breakage, broken};
pub use compare::Difference;
pub use drafters::{Minimal, Pattern, RowsDrafter, ScriptedDrafter, TableDrafter};
pub use exact::exact_law;
pub use faults::{Fault, FaultyDrafter};
pub use first_tokens::first_two_tokens;
pub use fit::Fit;
pub use lookup::LookUp;
pub use pairs::PairDrafter;
pub use play::{Played, Request, play, play_set, prefill};
pub use rotation::Rotation;
pub use scripted::{ScriptedTarget, cached_ids};
pub use sum::{SUM_TAIL, SumModel, SumState};
pub use table::{TABLE_VOCABULARY, TableModel};
pub use tracker::{Counts, Tracker};

/// Makes MLX report errors instead of ending the process, and puts every array on the CPU.
pub fn on_cpu() {
    // The first guarded call installs the error handler.
    let _ = mlx_rs::Device::try_default();
    mlx_rs::Device::set_default(&mlx_rs::Device::cpu());
}
