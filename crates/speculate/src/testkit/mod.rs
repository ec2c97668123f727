//! Scripted targets and drafters, and the conformance suite.
