//! Rules and limits, applied to requests.

mod checks;
mod claim_lists;
mod claimed_numbers;
mod client_controlled_input;
mod denials;
mod expires;
mod fixed_windows;
mod folded_values;
mod leaky_buckets;
mod list_files;
mod many_keys;
mod meters;
mod overrides;
mod overrides_files;
mod queue_numbers;
mod rules;
mod sliding_logs;
mod sliding_windows;
mod timelines;
