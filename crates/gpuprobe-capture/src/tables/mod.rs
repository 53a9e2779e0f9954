//! Reads and empties the tables in which the BPF programs count.

pub(crate) mod call_counts;
pub(crate) mod exited_rows;
pub(crate) mod gpu_ops;
pub(crate) mod indexed_table;
pub(crate) mod map_io;
pub(crate) mod memory_tables;
pub(crate) mod process_filter;
pub(crate) mod process_rows;
pub(crate) mod range_sweeper;
pub(crate) mod site_tables;
pub(crate) mod table_reader;
pub(crate) mod task_iterator;
pub(crate) mod tensor_tables;
pub(crate) mod unified_memory;
