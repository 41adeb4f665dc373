//! The rules of the scheduler, one by one.
