//! The conformance kit: random sequences against an oracle that recomputes everything from scratch.
//!
//! Whoever writes a cache runs [`check_rows`] or [`check_states`] on it; [`check_layers`] runs a whole set
//! of this crate's kinds, and [`check`] anything that can be described as a [`Subject`]. A run appends,
//! speculates, accepts and rejects, goes back, takes snapshots, restores, splits and merges them, at
//! random but always the same for one [`Plan`], and compares what every query sees with a plain list of
//! tokens. [`Toy`] and [`ToyState`] are small caches of their own, with [`Fault`]s that the kit must find.
//!
//! Nothing here serves requests: comparing means waiting for arrays.

mod conformance;
mod oracle;
mod random;
mod subject;
mod toy;
mod toy_caches;

pub use conformance::{Plan, Report, Violation, check, check_layers, check_rows, check_states};
pub use random::SplitMix;
pub use subject::{Complaint, Rows, Set, States, Subject};
pub use toy::{Folding, RowForm, STATE_TOLERANCE};
pub use toy_caches::{Fault, Toy, ToyState};

/// Makes MLX report errors instead of ending the process, and puts every array on the CPU.
pub fn on_cpu() {
    // The first guarded call installs the error handler.
    let _ = mlx_rs::Device::try_default();
    mlx_rs::Device::set_default(&mlx_rs::Device::cpu());
}
