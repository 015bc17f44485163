//! Events: requests that cannot be met, and memory that is freed in part.

use super::*;

#[test]
fn impossible_requests_are_errors_with_a_remedy() {
    let base = configuration(layout(Geometry::X86_3, &[]), none());
    let mut process = <Process>::new(&base).unwrap();
    let error = process.fault(Gva::new(1 << 40), AccessKind::Load).unwrap_err().to_string();
    assert!(error.contains("39 bits") && error.contains("more levels"), "{error}");
    for event in [
        map(1 << 40, PAGE, RW),
        map(u64::MAX - 5, 100, RW),
        Event::Unmap { address: 0, length: u64::MAX },
        Event::Break { from: 0, to: 1 << 50 },
        Event::Remap { from: 0, from_length: PAGE, to: 1 << 60, to_length: PAGE },
    ] {
        assert!(
            matches!(process.apply(&event), Err(OsError::BeyondAddressSpace { .. })),
            "{event:?}"
        );
    }
    for (fragmentation, failure) in [(1.5, 0.0), (f64::NAN, 0.0), (0.0, -0.1)] {
        let configuration =
            Configuration { fragmentation, large_failure_probability: failure, ..base.clone() };
        assert!(matches!(<Process>::new(&configuration), Err(OsError::Setting { .. })));
    }
    let tiny = Configuration { memory_bytes: 64 * PAGE, ..base };
    let mut process = self::process(&tiny, 0, GIB);
    let populate = Event::Populate { address: 0, length: GIB, store: true };
    let error = process.apply(&populate).unwrap_err().to_string();
    assert!(error.contains("memory_bytes") && error.contains("used up"), "{error}");
    assert_eq!(process.frames().free_frames(), 0, "all of it was used");
}

#[test]
fn a_larger_page_that_is_given_up_in_part_stays() {
    let ia64 = Geometry::new(14, 11, 3).unwrap();
    let page = ia64.span(1);
    let start = 16 * page;
    let mut process = process(&configuration(layout(ia64, &[]), none()), start, 4 * page);
    let there = |process: &Process| -> Vec<bool> {
        (0..4)
            .map(|n| process.table().lookup(process.memory(), Gva::new(start + n * page)).is_ok())
            .collect()
    };
    for n in 0..4 {
        let _ = touch(&mut process, start + n * page);
    }
    let unmap = |address, length| Event::Unmap { address, length };
    // The second half of page 0, all of page 1, a quarter of page 2.
    let _ = process.apply(&unmap(start + page / 2, page / 2 + page + page / 4)).unwrap();
    assert_eq!(there(&process), [true, false, true, true]);
    // A new mapping in page 3 leaves the rest of it; one that ends in a part of a small page of the
    // program's takes all of that.
    let _ = process.apply(&map(start + 3 * page + PAGE, PAGE, RO)).unwrap();
    assert_eq!(there(&process), [true, false, true, true]);
    let _ = process.apply(&unmap(start + 2 * page, page - PAGE + 1)).unwrap();
    assert_eq!(there(&process), [true, false, false, true]);
}

#[test]
fn sixteen_kib_pages_with_eleven_index_bits_work_too() {
    let geometry = Geometry::new(14, 11, 3).unwrap();
    let mut process = process(&configuration(layout(geometry, &[]), all()), 0, 1 << 26);
    let _ = process
        .apply(&Event::Advise { address: 0, length: 4096, advice: Advice::Populate })
        .unwrap();
    assert_eq!(process.data_bytes(), 1 << 25, "one large page of 32 MiB");
    let mut small = self::process(&configuration(layout(geometry, &[]), none()), 0, 1 << 26);
    let _ = touch(&mut small, 20_000);
    assert_eq!((small.data_bytes(), small.page_table_bytes()), (1 << 14, 3 << 14));
}
