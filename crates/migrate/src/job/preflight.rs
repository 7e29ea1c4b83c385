//! Whether the nodes that a job's instances are to come to could take them: asked while all go on as they are.

use skiff_spec::fault::{Fault as Error, Result};
use skiff_user::context::UserContext;

use super::links::{self, MemberLink, MemberPlace, hear_all};
use crate::hear::refusal;
use crate::talk::{Offer, SourceMessage};

/// Asks each node about its instance; why not, of each.
pub fn ask_all(context: &UserContext, wanted: Vec<(MemberPlace, Offer)>) -> Result<Vec<Option<Error>>> {
    let (places, offers): (Vec<MemberPlace>, Vec<Offer>) = wanted.into_iter().unzip();
    let mut links = MemberLink::open_all(context, &places)?;
    let told = links
        .iter_mut()
        .zip(offers)
        .try_for_each(|(link, offer)| link.tell(&SourceMessage::Consider(Box::new(offer))));
    let answers = told.and_then(|()| hear_all(&mut links, refusal));
    links::end(links);
    answers
}
