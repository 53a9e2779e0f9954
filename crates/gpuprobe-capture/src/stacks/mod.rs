//! Unwinds stacks, and learns the call sites that memory is allocated at.

pub(crate) mod call_sites;
pub(crate) mod python_reader;
pub(crate) mod python_stacks;
pub(crate) mod raw_stack;
pub(crate) mod resolver;
pub(crate) mod site_tree;
