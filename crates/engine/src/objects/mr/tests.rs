use super::*;

const PD: Pd = Pd(1);
const ALL: Access = Access::REMOTE.union(Access::LOCAL_WRITE);

fn table() -> MrTable {
    MrTable::new(|| 0x2a5a_5a5a)
}

fn region(access: Access, addr: u64, len: u64, iova: u64) -> (MrTable, u32) {
    let mut table = table();
    let keys = table.register(PD, addr, len, iova, access).unwrap();
    (table, keys.lkey)
}

#[test]
fn check_inside_the_region_gives_the_address() {
    let (table, key) = region(ALL, 0x10_000, 100, 0x500);
    assert_eq!(table.check(key, 0x500, 100, PD, ALL), Ok(0x10_000));
    assert_eq!(table.check(key, 0x563, 1, PD, ALL), Ok(0x10_063));
    assert_eq!(table.check(key, 0x564, 0, PD, ALL), Ok(0x10_064));
}

#[test]
fn check_matrix_of_bad_ranges_is_refused() {
    let (table, key) = region(ALL, 0x10_000, 100, 0x500);
    for (at, len, error) in [
        (0x4ff, 1, ProtectionError::Bounds),
        (0x500, 101, ProtectionError::Bounds),
        (0x563, 2, ProtectionError::Bounds),
        (0x565, 0, ProtectionError::Bounds),
        (0, u64::MAX, ProtectionError::Bounds),
        (0x500, u64::MAX, ProtectionError::Wrap),
        (u64::MAX, 2, ProtectionError::Wrap),
        (u64::MAX, 1, ProtectionError::Bounds),
        (u64::MAX - 10, 100, ProtectionError::Wrap),
    ] {
        assert_eq!(
            table.check(key, at, len, PD, ALL),
            Err(error),
            "{at:#x} {len}"
        );
    }
}

#[test]
fn check_at_the_end_of_the_address_space_does_not_overflow() {
    let (table, key) = region(ALL, u64::MAX - 9, 10, u64::MAX - 9);
    assert_eq!(table.check(key, u64::MAX, 1, PD, ALL), Ok(u64::MAX));
    assert_eq!(
        table.check(key, u64::MAX, 2, PD, ALL),
        Err(ProtectionError::Wrap)
    );
    assert_eq!(
        table.check(key, 0, 1, PD, ALL),
        Err(ProtectionError::Bounds)
    );
}

#[test]
fn check_with_a_missing_right_is_refused_for_every_right() {
    let rights = [
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
    ];
    for missing in rights {
        let access = match missing {
            Access::LOCAL_WRITE => Access::REMOTE_READ,
            other => ALL - other,
        };
        let (table, key) = region(access, 0x1000, 8, 0x1000);
        assert_eq!(
            table.check(key, 0x1000, 8, PD, missing),
            Err(ProtectionError::Access)
        );
        assert!(table.check(key, 0x1000, 8, PD, access).is_ok());
    }
}

#[test]
fn check_with_another_pd_or_key_is_refused() {
    let (mut table, key) = region(ALL, 0x1000, 8, 0x1000);
    assert_eq!(
        table.check(key, 0x1000, 8, Pd(2), ALL),
        Err(ProtectionError::NotAssociated)
    );
    for bad in [0, 1, key ^ 1, key + (1 << RANDOM_BITS), u32::MAX] {
        assert_eq!(
            table.check(bad, 0x1000, 8, PD, ALL),
            Err(ProtectionError::InvalidStag)
        );
    }
    table.deregister(key).unwrap();
    assert_eq!(
        table.check(key, 0x1000, 8, PD, ALL),
        Err(ProtectionError::InvalidStag)
    );
    assert_eq!(table.deregister(key), Err(EngineError::Invalid));
}

#[test]
fn register_of_impossible_regions_is_refused() {
    let mut table = table();
    for (addr, len, iova, access) in [
        (u64::MAX, 2, 0, ALL),
        (0, 2, u64::MAX, ALL),
        (0, LIMITS.max_mr_octets + 1, 0, ALL),
        (0, 8, 0, Access::REMOTE_WRITE),
        (0, 8, 0, Access::REMOTE_ATOMIC),
    ] {
        assert_eq!(
            table.register(PD, addr, len, iova, access),
            Err(EngineError::Invalid)
        );
    }
    assert_eq!(table.count(), 0);
}

#[test]
fn register_after_deregister_uses_another_index() {
    let (mut table, key) = region(ALL, 0, 8, 0);
    table.deregister(key).unwrap();
    let again = table.register(PD, 0, 8, 0, ALL).unwrap().lkey;
    assert_ne!(again >> RANDOM_BITS, key >> RANDOM_BITS);
}

#[test]
fn reregister_changes_what_is_asked_and_keeps_the_key() {
    let (mut table, key) = region(ALL, 0x10_000, 100, 0x500);
    let change = MrChange {
        access: Some(Access::LOCAL_WRITE),
        ..MrChange::default()
    };
    assert_eq!(table.reregister(key, &change), Ok(PD));
    let read = table.check(key, 0x500, 8, PD, Access::REMOTE_READ);
    assert_eq!(read, Err(ProtectionError::Access));
    let change = MrChange {
        pd: Some(Pd(2)),
        translation: Some((0x20_000, 50, 0x900)),
        access: None,
    };
    assert_eq!(table.reregister(key, &change), Ok(PD));
    assert_eq!(
        table.check(key, 0x900, 50, Pd(2), Access::LOCAL_WRITE),
        Ok(0x20_000)
    );
    for (change, error) in [
        (
            MrChange {
                access: Some(Access::REMOTE_WRITE),
                ..MrChange::default()
            },
            EngineError::Invalid,
        ),
        (
            MrChange {
                translation: Some((u64::MAX, 2, 0)),
                ..MrChange::default()
            },
            EngineError::Invalid,
        ),
    ] {
        assert_eq!(table.reregister(key, &change), Err(error));
    }
    assert_eq!(
        table.check(key, 0x900, 50, Pd(2), Access::LOCAL_WRITE),
        Ok(0x20_000)
    );
}

#[test]
fn on_demand_and_null_regions_are_left_to_the_second_look() {
    let mut table = table();
    let on_demand = ALL | Access::ON_DEMAND;
    let paged = table
        .register(PD, 0x1000, 8, 0x1000, on_demand)
        .unwrap()
        .lkey;
    let null = table.register_null(PD).unwrap().lkey;
    for (key, place) in [(paged, Place::OnDemand(0x1000)), (null, Place::Null)] {
        let fast = table.check(key, 0x1000, 8, PD, Access::LOCAL_WRITE);
        assert_eq!(fast, Err(ProtectionError::Access));
        let found = table.find(key, 0x1000, 8, (PD, 0), Access::LOCAL_WRITE);
        assert_eq!(found, Ok(place));
        let foreign = table.find(key, 0x1000, 8, (Pd(2), 0), Access::LOCAL_WRITE);
        assert_eq!(foreign, Err(ProtectionError::NotAssociated));
    }
    let beyond = table.find(paged, 0x1000, 9, (PD, 0), Access::LOCAL_WRITE);
    assert_eq!(beyond, Err(ProtectionError::Bounds));
    for right in [
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
    ] {
        let remote = table.find(null, 0, 8, (PD, 0), right);
        assert_eq!(remote, Err(ProtectionError::Access));
    }
}

#[test]
fn pd_in_use_is_not_given_back() {
    let mut pds = PdTable::default();
    let pd = pds.alloc().unwrap();
    pds.acquire(pd).unwrap();
    assert_eq!(pds.dealloc(pd), Err(EngineError::Busy));
    pds.release(pd);
    assert_eq!(pds.dealloc(pd), Ok(()));
    assert_eq!(pds.dealloc(pd), Err(EngineError::Invalid));
    assert_eq!(pds.acquire(pd), Err(EngineError::Invalid));
}
