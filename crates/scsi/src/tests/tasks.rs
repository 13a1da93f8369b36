//! Tasks: their order, their limits, how they end (SAM-5 5 and 8).

use crate::Status;
use crate::testing::*;

/// Selects bytes 2 to 5 of the control mode page.
fn select_control(fixture: &mut Fixture, control: [u8; 4]) -> crate::Completion {
    let [two, three, four, five] = control;
    let list = [0, 0, 0, 0, 0x0a, 0x0a, two, three, four, five, 0, 0, 0xff, 0xff, 0, 120];
    fixture.run(&[0x15, 0x10, 0, 0, 16, 0], &list)
}

#[test]
fn spc4_7_5_8_what_the_control_page_says_of_tasks_can_be_changed() {
    let mut fixture = Fixture::new();
    let sense = |fixture: &mut Fixture, control: u8| {
        bytes(fixture.run(&[0x1a, 8, control | 0x0a, 0, 255, 0], &[]))[6..10].to_vec()
    };
    assert_eq!(sense(&mut fixture, 0x00), [0x00, 0x10, 0x00, 0x00]);
    assert_eq!(sense(&mut fixture, 0x40), [0x24, 0x16, 0x38, 0x40]);
    let control = [0x20, 0x02, 0x20, 0x40];
    assert_eq!(select_control(&mut fixture, control).status, Status::Good);
    assert_eq!(sense(&mut fixture, 0x00), control);
    assert_eq!(sense(&mut fixture, 0x80), [0x00, 0x10, 0x00, 0x00]);
    // Reserved values, whether or not the bits can change.
    for (reserved, byte) in
        [([0x40, 0, 0, 0], 6), ([0, 0x04, 0, 0], 7), ([0, 0x20, 0, 0], 7), ([0, 0, 0x10, 0], 8)]
    {
        let sense = select_control(&mut fixture, reserved).sense.expect("a refusal");
        assert_eq!(sense.additional().0, 0x2600, "{reserved:02x?}");
        assert_eq!(sense.field().expect("a pointer").byte, byte);
    }
    assert_eq!(sense(&mut fixture, 0x00), control);
}
