use super::*;

#[test]
fn a_budget_grows_at_once_and_shrinks_behind_the_evictor() {
    assert_eq!(next_budget_pages(1000, 5000, 1000), 5000);
    assert_eq!(next_budget_pages(6400, 0, 6200), 6200);
    assert_eq!(next_budget_pages(6400, 0, 6400), 6400 - 200);
    assert_eq!(next_budget_pages(6400, 6300, 6400), 6300);
    assert_eq!(next_budget_pages(6400, 0, 6401), 6400, "the evictor is not there yet");
    assert_eq!(next_budget_pages(6400, 0, 10), PROGRAM_PAGES_MIN);
    // An evictor that keeps its reserve free is never above the next budget.
    let mut budget_pages = 100_000;
    for _ in 0..1000 {
        let resident_pages = budget_pages - reserve_pages(budget_pages);
        budget_pages = next_budget_pages(budget_pages, 300, resident_pages);
        assert!(resident_pages <= budget_pages || budget_pages == 300);
    }
    assert_eq!(budget_pages, 300);
}

#[test]
fn buckets_grow_and_hold_their_floor() {
    for bucket in 0..BUCKETS - 1 {
        assert_eq!(bucket_of_ns(bucket_floor_ns(bucket)), bucket);
        assert!(bucket_floor_ns(bucket) < bucket_floor_ns(bucket + 1));
    }
    assert_eq!(bucket_of_ns(u64::MAX), BUCKETS - 1);
}
