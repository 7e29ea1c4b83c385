//! Errors that are ignored, each with the reason beside it.

/// A result whose error changes nothing for whoever has it. The reason is for readers of the code: nothing is done with it.
pub trait IgnoreError<T> {
    /// Goes on, whatever happened.
    fn ignore_error(self, why: &'static str);

    /// The value, or the empty one of its type if there is none.
    fn default_on_error(self, why: &'static str) -> T
    where
        T: Default;
}

impl<T, E> IgnoreError<T> for Result<T, E> {
    #[inline]
    fn ignore_error(self, _why: &'static str) {}

    #[inline]
    fn default_on_error(self, _why: &'static str) -> T
    where
        T: Default,
    {
        self.unwrap_or_else(|_| T::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_and_errors_are_not() {
        let number = |text: &str| text.parse::<u8>();
        assert_eq!(number("7").default_on_error("zero will do"), 7);
        assert_eq!(number("x").default_on_error("zero will do"), 0);
        number("x").ignore_error("nobody asks for the number");
    }
}
