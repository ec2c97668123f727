//! Tests of the prefix cache, on a toy model whose layers show which tokens they were fed.

mod budget;
mod cases;
mod random;
mod refusals;
mod sharing;
mod toy;
