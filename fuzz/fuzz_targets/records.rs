#![cfg_attr(fuzzing, no_main)]

gristmill_fuzz::target!(records);
