//! A command as the helper is told of it, which starts it as the user: texts, each ended by a zero byte.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use skiff_ipc::{Codec, Framing, Protocol, Unanswered};
use skiff_spec::fault::{Fault, Result};
use skiff_spec::limit::ResourceLimit;
use skiff_spec::wire::MOST_ORDERED;
use skiff_sys::signal::SignalMask;

use crate::command::{CommandSpec, os};
use crate::spawn_attr::SpawnAttr;
use crate::stack::StackLimit;

/// Said of a command whose directory will do or none.
const ONLY_THERE: &str = "only";
/// Said of a command that gets the standard descriptors only.
const CLOSED: &str = "closed";
/// Said of an environment with a host name of its own.
const OWN_NAME: &str = "name";

/// What to start, and how.
pub struct ExecRequest<'a> {
    /// The command. Whom root inside would become means nothing here.
    pub command: Cow<'a, CommandSpec>,
    /// How the command stands to the terminal and to its maker.
    pub attr: SpawnAttr,
    /// The signal mask that it gets.
    pub mask: SignalMask,
    /// The soft limit of the stack that it gets.
    pub stack: StackLimit,
    /// Whether the environment has a host name of its own, in a namespace that is to be entered, too.
    pub own_name: bool,
}

impl<'a> ExecRequest<'a> {
    /// With the limits of this process.
    #[must_use]
    pub fn new(command: &'a CommandSpec, attr: SpawnAttr, mask: SignalMask, own_name: bool) -> Self {
        Self { command: Cow::Borrowed(command), attr, mask, stack: StackLimit::own(), own_name }
    }

    /// As bytes.
    ///
    /// # Errors
    /// When one of its texts has a zero byte in it: no program could be given that.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let Self { command, attr, mask, stack, own_name } = self;
        let own_name = if *own_name { OWN_NAME } else { "" };
        let limits = command.limits.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let only_there = if command.only_there { ONLY_THERE } else { "" };
        let closed = if command.close_descriptors { CLOSED } else { "" };
        let mut bytes = vec![];
        push(&mut bytes, &[attr.to_word().as_ref()])?;
        push(&mut bytes, &[format!("{:x}", mask.to_bits()).as_ref()])?;
        push(&mut bytes, &[stack.to_word().as_ref()])?;
        push(&mut bytes, &[only_there.as_ref()])?;
        push(&mut bytes, &[command.cwd.as_os_str()])?;
        push(&mut bytes, &[command.argv0.as_deref().unwrap_or_default()])?;
        push(&mut bytes, &[limits.as_ref()])?;
        push(&mut bytes, &[own_name.as_ref()])?;
        push(&mut bytes, &[closed.as_ref()])?;
        push(&mut bytes, &[command.argv.len().to_string().as_ref()])?;
        for word in &command.argv {
            push(&mut bytes, &[word])?;
        }
        for (name, value) in &command.env {
            push(&mut bytes, &[name, "=".as_ref(), value])?;
        }
        Ok(bytes)
    }

    /// From bytes; nothing if that is not what they are.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<ExecRequest<'static>> {
        let mut texts = bytes.strip_suffix(&[0])?.split(|byte| *byte == 0).map(OsStr::from_bytes);
        let attr = SpawnAttr::from_word(texts.next()?.to_str()?)?;
        let mask = u64::from_str_radix(texts.next()?.to_str()?, 16).ok()?;
        let stack = StackLimit::from_word(texts.next()?.to_str()?)?;
        let only_there = texts.next()? == ONLY_THERE;
        let cwd = texts.next()?.into();
        let argv0 = texts.next().map(OsString::from)?;
        let limits = limits(texts.next()?.to_str()?)?;
        let own_name = texts.next()? == OWN_NAME;
        let close_descriptors = texts.next()? == CLOSED;
        let count = texts.next()?.to_str()?.parse::<usize>().ok().filter(|count| *count > 0)?;
        let argv: Vec<OsString> = texts.by_ref().take(count).map(OsString::from).collect();
        let env = texts.map(variable).collect::<Option<_>>()?;
        let argv0 = Some(argv0).filter(|name| !name.is_empty());
        let command = CommandSpec {
            argv,
            argv0,
            env,
            cwd,
            only_there,
            close_descriptors,
            limits,
            ..CommandSpec::default()
        };
        let whole = command.argv.len() == count;
        whole.then_some(ExecRequest {
            command: Cow::Owned(command),
            attr,
            mask: SignalMask::from_bits(mask),
            stack,
            own_name,
        })
    }
}

impl Codec for ExecRequest<'static> {
    const LONGEST: usize = MOST_ORDERED;

    fn to_bytes(&self) -> Option<Vec<u8>> {
        self.encode().ok().filter(|bytes| bytes.len() <= MOST_ORDERED)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= MOST_ORDERED).then(|| Self::decode(bytes)).flatten()
    }
}

impl Protocol for ExecRequest<'static> {
    type Answer = Unanswered;
    const NAME: &'static str = "Command for the helper";
    const SIDES: [&'static str; 2] = ["`skiff`, as the user", "the process that the setuid helper makes"];
    const FRAMING: Framing = Framing::Own(
        "That process still has root's rights, and reads it without a parser of documents: texts, each ended by a zero byte, in as many `Order` requests as they take.",
    );
}

/// One text, of these parts.
fn push(bytes: &mut Vec<u8>, parts: &[&OsStr]) -> Result<()> {
    for part in parts {
        if part.as_bytes().contains(&0) {
            return Err(Fault::new(format!(
                "{part:?}: no word or variable of a program can have a zero byte"
            )));
        }
        bytes.extend(part.as_bytes());
    }
    bytes.push(0);
    Ok(())
}

/// What is behind one another with spaces between.
fn limits(text: &str) -> Option<Vec<ResourceLimit>> {
    text.split_ascii_whitespace().map(|limit| limit.parse().ok()).collect()
}

fn variable(text: &OsStr) -> Option<(OsString, OsString)> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    Some((os(&bytes[..at]), os(&bytes[at + 1..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(word: &str) -> StackLimit {
        StackLimit::from_word(word).expect("a limit")
    }

    fn request() -> ExecRequest<'static> {
        let command = CommandSpec {
            argv: vec!["sh".into(), "".into(), os(b"\xff=")],
            argv0: Some("-sh".into()),
            env: vec![("A".into(), "1=2".into()), ("B".into(), "".into()), ("".into(), "x".into())],
            cwd: "/a b".into(),
            only_there: true,
            close_descriptors: true,
            limits: ["nofile=5:9", "core=-1"].map(|text| text.parse().expect("a limit")).into(),
            ..CommandSpec::default()
        };
        let attr = SpawnAttr { own_group: true, death_signal: 9, ..SpawnAttr::default() };
        ExecRequest {
            command: Cow::Owned(command),
            attr,
            mask: SignalMask::from_bits(5),
            stack: limit("40000000"),
            own_name: true,
        }
    }

    #[test]
    fn orders_come_back_as_they_went() {
        let plain = CommandSpec { argv: vec!["a".into()], cwd: "/".into(), ..CommandSpec::default() };
        for request in [
            request(),
            ExecRequest {
                command: Cow::Owned(plain),
                stack: limit("ffffffffffffffff"),
                own_name: false,
                ..request()
            },
        ] {
            let back = ExecRequest::decode(&request.encode().expect("no zero bytes")).expect("as encoded");
            assert_eq!((back.command, back.attr, back.stack), (request.command, request.attr, request.stack));
            assert_eq!(back.own_name, request.own_name);
            assert_eq!(back.mask.to_bits(), request.mask.to_bits());
        }
    }

    #[test]
    fn what_would_be_taken_for_more_texts_is_refused() {
        for word in [os(b"a\0b"), os(b"\0")] {
            let in_word = CommandSpec { argv: vec![word.clone()], ..CommandSpec::default() };
            let in_variable = CommandSpec { env: vec![("A".into(), word)], ..CommandSpec::default() };
            for command in [in_word, in_variable] {
                let refused =
                    ExecRequest { command: Cow::Owned(command), ..request() }.encode().expect_err("a zero");
                assert!(refused.message.contains("can have a zero byte"), "{refused}");
            }
        }
    }

    #[test]
    fn half_an_order_is_none() {
        let whole = request().encode().expect("no zero bytes");
        let program = whole.windows(3).position(|at| at == b"sh\0").expect("there").max(1);
        for end in 0..program + 2 {
            assert!(ExecRequest::decode(&whole[..end]).is_none(), "{end} bytes");
        }
        for bad in [
            "",
            "\0",
            "0000\x000\x000\0\0/\0\0\0\0\x000\0",
            "0000\x000\x000\0\0/\0\0\0\0\x002\0a\0",
            "0000\x000\x000\0\0/\0\0\0\0\x001\0a\0A\0",
            "0000\0x\x000\0\0/\0\0\0\0\x001\0a\0",
            "0000\x000\0x\0\0/\0\0\0\0\x001\0a\0",
            "0000\x000\x000\0\0/\0\0nofile\0\0\x001\0a\0",
        ] {
            assert!(ExecRequest::decode(bad.as_bytes()).is_none(), "{bad:?}");
        }
        let good = "0000\x000\x000\0\0/\0\0\0\0\x001\0a\0";
        assert!(ExecRequest::decode(good.as_bytes()).is_some(), "{good:?}");
    }
}
