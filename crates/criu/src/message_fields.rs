//! Fields of a message (Protocol Buffers), for whoever changes one and keeps all others as they are, known or not.

use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};

/// The fields of a message, each with its number, and whole: with its key.
pub(crate) fn fields(message: &[u8]) -> Option<Vec<(u32, &[u8])>> {
    let (mut rest, mut found) = (message, vec![]);
    while !rest.is_empty() {
        let field = rest;
        let (number, kind) = decode_key(&mut rest).ok()?;
        skip_field(kind, number, &mut rest, DecodeContext::default()).ok()?;
        found.push((number, field.get(..field.len() - rest.len())?));
    }
    Some(found)
}

/// What is in a whole field that is a message.
pub(crate) fn content(mut field: &[u8]) -> Option<&[u8]> {
    let (_, kind) = decode_key(&mut field).ok()?;
    let length = decode_varint(&mut field).ok()?;
    (kind == WireType::LengthDelimited && usize::try_from(length) == Ok(field.len())).then_some(field)
}

/// Appends a field that is a message.
pub(crate) fn append(message: &mut Vec<u8>, number: u32, content: &[u8]) {
    encode_key(number, WireType::LengthDelimited, message);
    encode_varint(content.len() as u64, message);
    message.extend(content);
}

/// Appends a field that is a number.
pub(crate) fn append_number(message: &mut Vec<u8>, number: u32, value: u64) {
    encode_key(number, WireType::Varint, message);
    encode_varint(value, message);
}
