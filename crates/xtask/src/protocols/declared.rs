//! Declarations of protocols in the sources: `impl Protocol for ...`, with the limits of its messages.

use anyhow::{Context, bail};

use super::sources::{Declaration, SourceItem, Sources};

/// A declared protocol.
pub struct Declared {
    pub name: String,
    /// Who begins, and who answers.
    pub sides: [String; 2],
    pub framing: Frames,
    pub question: Messages,
    /// Nothing is answered if there are none.
    pub answer: Option<Messages>,
}

/// How its messages are told apart.
pub enum Frames {
    Stream,
    Packets,
    Own(String),
}

/// One side's messages.
pub struct Messages {
    pub place: Declaration,
    /// The longest, in bytes.
    pub longest: u64,
    /// How many descriptors may come with one.
    pub descriptors: u64,
}

/// All declared protocols, by their names.
pub fn all(sources: &Sources) -> anyhow::Result<Vec<Declared>> {
    let mut found = vec![];
    for (number, source) in sources.all() {
        for item in impls(&source.parsed, "Protocol") {
            found.push(declared(sources, number, item).with_context(|| source.path.clone())?);
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    if let Some(twice) = found.windows(2).find(|pair| pair[0].name == pair[1].name) {
        bail!("two protocols are called {:?}", twice[0].name);
    }
    Ok(found)
}

/// Implementations of a trait in a file, for types that are not a parameter.
fn impls<'a>(file: &'a syn::File, name: &str) -> impl Iterator<Item = &'a syn::ItemImpl> {
    file.items.iter().filter_map(move |item| match item {
        syn::Item::Impl(item) if item.generics.params.is_empty() => {
            let (path, _) = item.trait_.as_ref()?;
            (path.segments.last()?.ident == name).then_some(item)
        }
        _ => None,
    })
}

fn declared(sources: &Sources, number: usize, item: &syn::ItemImpl) -> anyhow::Result<Declared> {
    let question = messages(sources, place(sources, number, &item.self_ty)?)?;
    let answer = item.items.iter().find_map(|item| match item {
        syn::ImplItem::Type(item) if item.ident == "Answer" => Some(&item.ty),
        _ => None,
    });
    let answer = answer.context("no type Answer")?;
    let is_silent = matches!(answer, syn::Type::Path(path) if path.path.is_ident("Unanswered"));
    let answer = match is_silent {
        true => None,
        false => Some(messages(sources, place(sources, number, answer)?)?),
    };
    let sides = match value(item, "SIDES")? {
        syn::Expr::Array(array) => array.elems.iter().map(literal).collect::<anyhow::Result<Vec<_>>>()?,
        _ => bail!("SIDES is not an array"),
    };
    Ok(Declared {
        name: literal(value(item, "NAME")?)?,
        sides: sides.try_into().ok().context("SIDES does not name two")?,
        framing: framing(value(item, "FRAMING")?)?,
        question,
        answer,
    })
}

fn place(sources: &Sources, number: usize, ty: &syn::Type) -> anyhow::Result<Declaration> {
    let syn::Type::Path(ty) = ty else { bail!("a message is not a type with a name") };
    let name = super::sources::text(ty);
    sources.find(number, &ty.path).with_context(|| format!("{name} is not found"))
}

fn value<'a>(item: &'a syn::ItemImpl, name: &str) -> anyhow::Result<&'a syn::Expr> {
    let found = item.items.iter().find_map(|item| match item {
        syn::ImplItem::Const(item) if item.ident == name => Some(&item.expr),
        _ => None,
    });
    found.with_context(|| format!("no const {name}"))
}

fn literal(value: &syn::Expr) -> anyhow::Result<String> {
    match value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Ok(text.value()),
        _ => bail!("{} is not a text", super::sources::text(value)),
    }
}

fn framing(value: &syn::Expr) -> anyhow::Result<Frames> {
    let last = |path: &syn::ExprPath| path.path.segments.last().map(|segment| segment.ident.to_string());
    match value {
        syn::Expr::Path(path) if last(path).as_deref() == Some("Stream") => Ok(Frames::Stream),
        syn::Expr::Path(path) if last(path).as_deref() == Some("Packets") => Ok(Frames::Packets),
        syn::Expr::Call(call) => {
            literal(call.args.first().context("Framing::Own without a reason")?).map(Frames::Own)
        }
        _ => bail!("{} is not a framing", super::sources::text(value)),
    }
}

/// The limits of a type's messages, from its `Message` or `Codec`, wherever that stands.
fn messages(sources: &Sources, place: Declaration) -> anyhow::Result<Messages> {
    for (number, source) in sources.all() {
        for item in impls(&source.parsed, "Message").chain(impls(&source.parsed, "Codec")) {
            if self::place(sources, number, &item.self_ty).is_ok_and(|of| of == place) {
                let longest = number_of(sources, number, value(item, "LONGEST")?)?;
                let descriptors =
                    value(item, "DESCRIPTORS").ok().map(|value| number_of(sources, number, value));
                return Ok(Messages { place, longest, descriptors: descriptors.transpose()?.unwrap_or(0) });
            }
        }
    }
    bail!("{} is neither a Message nor has it a Codec", place.1)
}

/// The value of a constant expression.
fn number_of(sources: &Sources, from: usize, value: &syn::Expr) -> anyhow::Result<u64> {
    let number = |value: &syn::Expr| number_of(sources, from, value);
    match value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(literal), .. }) => Ok(literal.base10_parse()?),
        syn::Expr::Cast(cast) => number(&cast.expr),
        syn::Expr::Paren(inner) => number(&inner.expr),
        syn::Expr::Binary(binary) => {
            let (left, right) = (number(&binary.left)?, number(&binary.right)?);
            match binary.op {
                syn::BinOp::Add(_) => Some(left + right),
                syn::BinOp::Mul(_) => Some(left * right),
                syn::BinOp::Shl(_) => Some(left << right),
                _ => None,
            }
            .with_context(|| format!("{}: not one of +, * and <<", super::sources::text(value)))
        }
        syn::Expr::Path(path) => {
            let place = sources.find(from, &path.path);
            match place.as_ref().and_then(|place| sources.get(place)) {
                Some(SourceItem::Const(found)) => {
                    number_of(sources, place.map_or(from, |at| at.0), &found.expr)
                }
                _ => bail!("{} is not found", super::sources::text(path)),
            }
        }
        _ => bail!("{} is not understood", super::sources::text(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_read_with_their_limits() {
        let sources = Sources::of(&[
            (
                "crates/a/src/wire.rs",
                "use crate::limits; use skiff_ipc::Unanswered;
                 enum Ask { A } enum Say { B }
                 impl Message for Ask { const LONGEST: usize = limits::MOST as usize; const DESCRIPTORS: usize = 2; }
                 impl Codec for Say { const LONGEST: usize = 5; }
                 impl Protocol for Ask { type Answer = Say; const NAME: &str = \"b\";
                   const SIDES: [&str; 2] = [\"x\", \"y\"]; const FRAMING: Framing = Framing::Own(\"why\"); }
                 impl Protocol for Say { type Answer = Unanswered; const NAME: &str = \"a\";
                   const SIDES: [&str; 2] = [\"x\", \"y\"]; const FRAMING: Framing = Framing::Packets; }",
            ),
            ("crates/a/src/limits.rs", "pub const MOST: u32 = 4 + (2 << TEN); const TEN: u32 = 10;"),
        ]);
        let all = all(&sources).unwrap();
        assert_eq!(all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(all[0].answer.is_none());
        let b = &all[1];
        assert_eq!((b.question.longest, b.question.descriptors), (2052, 2));
        assert_eq!(b.answer.as_ref().map(|answer| (answer.longest, answer.descriptors)), Some((5, 0)));
        assert!(matches!(&b.framing, Frames::Own(why) if why == "why"));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let rest = "const SIDES: [&str; 2] = [\"x\", \"y\"]; const FRAMING: Framing = Framing::Stream;";
        for (answer, limits, reason) in [
            ("Nothing", "impl Message for Ask { const LONGEST: usize = 1; }", "Nothing is not found"),
            ("Ask", "", "Ask is neither a Message nor has it a Codec"),
            ("Ask", "impl Message for Ask { const LONGEST: usize = f(); }", "f() is not understood"),
        ] {
            let text = format!(
                "enum Ask {{}} {limits} impl Protocol for Ask {{ type Answer = {answer}; const NAME: &str = \"a\"; {rest} }}"
            );
            let refused = all(&Sources::of(&[("crates/a/src/lib.rs", &text)])).err().unwrap();
            assert_eq!(refused.root_cause().to_string(), reason);
        }
    }
}
