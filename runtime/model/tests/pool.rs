//! Each scenario in every order that loom finds, with up to three changes of threads that nothing forces.

use gristmill_pool_model as scenario;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn model(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    let orders = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&orders);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        scenario();
    });
    let orders = orders.load(Ordering::Relaxed);
    println!("{orders} orders");
    assert!(orders > 100, "only {orders} orders: the threads of this scenario hardly meet");
}

#[test]
fn every_part_runs_once() {
    model(3, || scenario::every_part_runs_once(1, &[2]));
}

#[test]
fn every_part_of_several_jobs_runs_once() {
    model(2, || scenario::every_part_runs_once(1, &[1, 0, 2]));
}

#[test]
fn every_part_runs_once_with_two_workers() {
    model(2, || scenario::every_part_runs_once(2, &[2]));
}

#[test]
fn every_part_runs_once_on_two_nodes() {
    model(2, scenario::every_part_runs_once_on_two_nodes);
}

#[test]
fn every_part_runs_once_where_one_helps_another() {
    model(2, || scenario::every_part_runs_once(1, &[4]));
}

#[test]
fn a_sleeping_worker_is_woken() {
    model(3, || scenario::a_sleeping_worker_is_woken(2));
}

#[test]
fn workers_stay_awake_and_sleep_again() {
    model(2, scenario::workers_stay_awake_and_sleep_again);
}

#[test]
fn two_callers() {
    model(2, scenario::two_callers);
}

#[test]
fn a_job_inside_a_job() {
    model(3, scenario::a_job_inside_a_job);
}

#[test]
fn a_panic_reaches_the_caller() {
    for part in 0..2 {
        model(2, move || scenario::a_panic_reaches_the_caller(part));
    }
}
