//! Limits how many libraries are probed at once, in total and per user: a user who makes hundreds of copies of libcuda
//! cannot use up the room of others.

use std::collections::{BTreeSet, HashMap, HashSet};

use gpuprobe_discover::{FileId, UserId};

/// Most libraries probed at once. A host has one CUDA driver and a few container images bring their own; more than
/// this are made on purpose.
pub(crate) const MOST_LIBRARIES: usize = 256;
/// Most files per user. A file of several users is refused only if each of them has reached the limit.
pub(crate) const MOST_OF_USER: usize = 64;
/// Most files of all users together, and the limit for users with few files. The remaining room is for root and for
/// files in the host's library folders.
const MOST_OF_USERS: usize = 192;
const MOST_WITH_SMALL_SHARES: usize = 224;
/// What counts as few files, so that one person with several user ids cannot use up all the room.
const SMALL_SHARE: usize = 8;
/// Most users whose refusal is reported; refusals of others are silent.
const MOST_REPORTED: usize = 64;

/// The users of each probed file.
#[derive(Debug, Default)]
pub(crate) struct UserQuota {
    /// Without files that root uses or that lie in the host's library folders.
    users: HashMap<FileId, BTreeSet<UserId>>,
    reported: BTreeSet<UserId>,
}

impl UserQuota {
    /// Counts a file for its users. Returns one of them if it is refused, which happens when each of its users has
    /// reached their share.
    pub(crate) fn refuses(&mut self, file: FileId, users: &BTreeSet<UserId>) -> Option<UserId> {
        if users.is_empty() || users.contains(&UserId::ROOT) || self.users.contains_key(&file) {
            return None;
        }
        let share = match self.users.len() {
            0..MOST_OF_USERS => MOST_OF_USER,
            MOST_OF_USERS..MOST_WITH_SMALL_SHARES => SMALL_SHARE,
            _ => 0,
        };
        if !users.iter().any(|user| self.count(*user) < share) {
            return users.first().copied();
        }
        self.users.insert(file, users.clone());
        None
    }

    /// Whether this is the first refusal of this user that is reported.
    pub(crate) fn is_first_refusal(&mut self, user: UserId) -> bool {
        self.reported.len() < MOST_REPORTED && self.reported.insert(user)
    }

    /// Whether an unused file should be detached to make room for other files of its users.
    pub(crate) fn needs_room(&self, file: &FileId) -> bool {
        let is_full = |users: &BTreeSet<UserId>| users.iter().any(|user| self.count(*user) >= MOST_OF_USER);
        self.users.len() >= MOST_OF_USERS || self.users.get(file).is_some_and(is_full)
    }

    /// Updates the users of files. Unused files keep their last users.
    pub(crate) fn update(&mut self, users: &HashMap<FileId, BTreeSet<UserId>>) {
        for (file, known) in &mut self.users {
            if let Some(users) = users.get(file) {
                known.clone_from(users);
            }
        }
        self.users.retain(|_, users| !users.contains(&UserId::ROOT));
    }

    /// Forgets files that are no longer probed.
    pub(crate) fn retain(&mut self, probed: &HashSet<FileId>) {
        self.users.retain(|file, _| probed.contains(file));
    }

    fn count(&self, user: UserId) -> usize {
        self.users.values().filter(|users| users.contains(&user)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: UserId = UserId(1000);
    const BOB: UserId = UserId(1001);

    fn file(inode: usize) -> FileId {
        FileId { dev: 1, inode: inode as u64 }
    }

    fn of(users: &[UserId]) -> BTreeSet<UserId> {
        users.iter().copied().collect()
    }

    /// A quota that one user has filled up.
    fn full_quota() -> UserQuota {
        let mut quota = UserQuota::default();
        let refused = (0..300).filter(|i| quota.refuses(file(*i), &of(&[ALICE])).is_some()).count();
        assert_eq!(refused, 300 - MOST_OF_USER);
        quota
    }

    #[test]
    fn a_full_user_does_not_affect_others() {
        let mut quota = full_quota();
        assert_eq!(quota.refuses(file(900), &of(&[ALICE])), Some(ALICE));
        for (i, users) in
            [of(&[BOB]), of(&[ALICE, BOB]), of(&[UserId::ROOT]), of(&[ALICE, UserId::ROOT]), of(&[])]
                .iter()
                .enumerate()
        {
            assert_eq!(quota.refuses(file(1000 + i), users), None, "{users:?}");
        }
        assert_eq!(quota.count(BOB), 2, "files of root or the host are not counted");
    }

    #[test]
    fn users_with_few_files_have_room_when_others_have_many() {
        let mut quota = UserQuota::default();
        let mut refused = |user: u32, files: usize| {
            let mut refuses =
                |i| quota.refuses(file(1000 * user as usize + i), &of(&[UserId(user)])).is_some();
            (0..files).filter(|i| refuses(*i)).count()
        };
        assert_eq!([2000, 2001, 2002].map(|user| refused(user, MOST_OF_USER)), [0, 0, 0]);
        assert_eq!(refused(2000, MOST_OF_USER + 1), 1);
        assert_eq!(refused(2003, SMALL_SHARE + 1), 1);
        assert_eq!(refused(2004, SMALL_SHARE), 0);
    }

    #[test]
    fn a_file_is_counted_once_and_frees_its_room_when_removed() {
        let mut quota = full_quota();
        assert_eq!(quota.refuses(file(3), &of(&[ALICE])), None, "a file can contain two libraries");
        assert!(quota.needs_room(&file(3)) && !quota.needs_room(&file(900)));
        quota.retain(&(4..300).map(file).collect());
        assert_eq!(quota.count(ALICE), MOST_OF_USER - 4);
        assert_eq!(quota.refuses(file(900), &of(&[ALICE])), None);
    }

    #[test]
    fn many_users_together_leave_room_for_root() {
        let mut quota = UserQuota::default();
        let user = |i: usize| of(&[UserId(2000 + i as u32)]);
        assert!((0..MOST_WITH_SMALL_SHARES).all(|i| quota.refuses(file(i), &user(i)).is_none()));
        assert_eq!(quota.refuses(file(900), &user(900)), Some(UserId(2900)));
        assert_eq!(quota.refuses(file(900), &of(&[UserId::ROOT])), None);
        const { assert!(MOST_WITH_SMALL_SHARES < MOST_LIBRARIES) };
    }

    #[test]
    fn a_file_that_root_starts_to_use_is_not_counted() {
        let mut quota = full_quota();
        let now = HashMap::from([(file(0), of(&[ALICE, UserId::ROOT])), (file(1), of(&[BOB]))]);
        quota.update(&now);
        assert_eq!((quota.count(ALICE), quota.count(BOB)), (MOST_OF_USER - 2, 1));
    }

    #[test]
    fn a_refusal_is_reported_once_per_user() {
        let mut quota = UserQuota::default();
        assert!(quota.is_first_refusal(ALICE) && quota.is_first_refusal(BOB));
        assert!(!quota.is_first_refusal(ALICE));
        let reported = (0..1000).filter(|i| quota.is_first_refusal(UserId(5000 + i))).count();
        assert_eq!(reported, MOST_REPORTED - 2);
    }
}
