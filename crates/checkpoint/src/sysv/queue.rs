//! Message queues.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use skiff_spec::fault::{Context as _, Fault, Result};
use skiff_sys::sysv::{self, Kind, QueueMessage};

use super::object::{as_process, named, read_part, write_part};
use crate::sysv_tables::{Entry, SystemVObject};

/// Bytes of messages that are sent by one process, about.
const PIECE: usize = 1 << 20;
/// So many messages are sent by one process.
const BATCH: usize = 1024;
/// No message is longer than the kernel's limit, and that not than this one. Source: `MSGMAX` may be set to 2 GiB; no sane host has it so.
const LONGEST_MESSAGE: usize = 16 << 20;

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SystemVQueue {
    pub(super) object: SystemVObject,
    /// Bytes that it may hold.
    pub(super) limit: u64,
    pub(super) messages: u64,
    /// The process that has last sent one.
    pub(super) sender: i32,
}

impl SystemVQueue {
    pub(super) fn read(entry: Entry, into: &mut impl Write) -> Result<Self> {
        let about = || named(Kind::Queue, entry.id);
        let limit = sysv::queue_limit(entry.id).context(about)?;
        // None is longer than all together.
        let longest = usize::try_from(entry.number(3)).unwrap_or(0).clamp(1, LONGEST_MESSAGE);
        let mut messages = 0;
        while let Some(message) =
            sysv::peek_message(entry.id, usize::try_from(messages).unwrap_or(usize::MAX), longest)
                .map_err(|e| unread(e, about()))?
        {
            write_part(into, message.kind.cast_unsigned(), &message.text).context(about)?;
            messages += 1;
        }
        let sender = entry.process(5);
        Ok(Self { object: entry.object, limit, messages, sender })
    }

    pub(super) fn make(&self, from: &mut impl Read) -> Result<()> {
        let id = self.object.id;
        let about = || named(Kind::Queue, id);
        self.object.make(Kind::Queue, 0, sysv::create_queue)?;
        let (mut batch, mut bytes) = (vec![], 0);
        for place in 1..=self.messages {
            let (kind, text) = read_part(from, LONGEST_MESSAGE).context(about)?;
            bytes += text.len();
            batch.push(QueueMessage { kind: kind.cast_signed(), text });
            // Whoever wrote the checkpoint does not say how much of our memory they take.
            if bytes >= PIECE || batch.len() == BATCH || place == self.messages {
                let send = || batch.iter().try_for_each(|message| sysv::send_message(id, message));
                as_process(self.sender, (0, 0), send).context(about)?;
                (batch, bytes) = (vec![], 0);
            }
        }
        // It may hold more than it may be given now.
        self.object.set_owner(Kind::Queue, self.limit)
    }
}

/// Why a message cannot be read so that it stays.
fn unread(e: io::Error, queue: String) -> Fault {
    let is_longer = e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error());
    match is_longer {
        true => Fault::new(format!("{queue}: it has a message that is longer than kernel.msgmax is now"))
            .hint("inside: make /proc/sys/kernel/msgmax as large as it was"),
        false => Fault::new(format!("{queue}: {e}")),
    }
}
