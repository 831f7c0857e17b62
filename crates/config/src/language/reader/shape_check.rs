//! Checks whether a value has the [`Shape`] that its key declares.

use super::Field;
use crate::language::shape::{Duration, List, Scalars, Shape, Text};

/// Reports a text that does not match its pattern. The second parameter is the message, such as "be a duration like 5m".
pub(crate) type ReportMismatch = fn(&Field<'_>, &str);

impl Field<'_> {
    /// Checks that the value has this shape. Of a list or mapping, only the number of members is checked. `None` after
    /// reporting a problem.
    pub(crate) fn check(&self, shape: &Shape) -> Option<()> {
        self.check_reporting(shape, |field, must| field.must(must))
    }

    /// Checks the value as [`Field::check`] does, but uses `report` for a text that does not match its pattern.
    pub(crate) fn check_reporting(&self, shape: &Shape, report: ReportMismatch) -> Option<()> {
        match shape {
            Shape::Defined(definition) => self.check_reporting(&definition.shape, report),
            Shape::WithMessage { of, .. } => self.check_reporting(of, report),
            Shape::Scalar => self.written().map(drop),
            Shape::Boolean => self.boolean().map(drop),
            Shape::Words(words) | Shape::Numerals(words) => self.word(words).map(drop),
            Shape::Whole(whole) => {
                let number = self.whole(whole.bounds())?;
                if whole.except.contains(&number) {
                    self.wrong(format_args!("must not be {number}, {}", whole.why), None);
                    return None;
                }
                Some(())
            }
            Shape::Text(text) => self.check_text(text, report),
            Shape::NonEmptyText { must } => {
                if self.text()?.is_empty() {
                    self.must(must);
                    return None;
                }
                Some(())
            }
            Shape::Duration(duration) => {
                let mismatch = duration.mismatch(self.text_if_any());
                if let Some(must) = mismatch {
                    self.must_hinting(must, self.hint_for_duration());
                }
                mismatch.is_none().then_some(())
            }
            Shape::Decimal(_) => {
                if !self.has_shape(shape) {
                    self.must_hinting(shape.must(), self.hint_for_number());
                    return None;
                }
                Some(())
            }
            Shape::Either { of, .. } => self.check_either(shape, of, report),
            Shape::OneOrList(_) if !self.is_list() => Some(()),
            Shape::List(list) | Shape::OneOrList(list) => self.check_list(list),
            Shape::Map { least, empty, .. } => {
                if self.pairs()?.len() < *least {
                    self.wrong(format_args!("must {empty}"), None);
                    return None;
                }
                Some(())
            }
            Shape::Conditions { least, empty, .. } => {
                if self.pairs()?.len() < *least {
                    self.must(empty);
                    return None;
                }
                Some(())
            }
        }
    }

    /// Whether the value and all of its members have this shape. The names of attributes in conditions are not checked.
    pub(crate) fn has_shape(&self, shape: &Shape) -> bool {
        match shape {
            Shape::Defined(definition) => self.has_shape(&definition.shape),
            Shape::WithMessage { of, .. } => self.has_shape(of),
            Shape::Scalar => self.is_single(),
            Shape::Boolean => self.truth().is_some(),
            Shape::Words(words) | Shape::Numerals(words) => words.iter().any(|word| self.is_written(word)),
            Shape::Whole(whole) => {
                self.whole_if_within(&whole.bounds()).is_some_and(|number| !whole.except.contains(&number))
            }
            Shape::Decimal(decimal) => self.number().is_some_and(|text| decimal.accepts(text)),
            Shape::Text(text) => {
                self.may_be(text.scalars) && self.text_if_any().is_some_and(|found| text.accepts(found))
            }
            Shape::NonEmptyText { .. } => self.is_text() && self.text_if_any().is_some_and(|text| !text.is_empty()),
            Shape::Duration(Duration { .. }) if !self.is_single() => false,
            Shape::Duration(duration) => duration.mismatch(self.text_if_any()).is_none(),
            Shape::Either { of, .. } => of.iter().any(|shape| self.has_shape(shape)),
            Shape::OneOrList(list) if !self.is_list() => self.has_shape(list.of),
            Shape::List(list) | Shape::OneOrList(list) => self.members_if_list().is_some_and(|members| {
                let is_repeated = |(index, member): (usize, &Field<'_>)| {
                    members.iter().take(index).any(|other| other.is_like(member))
                };
                (list.least..=list.most).contains(&members.len())
                    && members.iter().all(|member| member.has_shape(list.of))
                    && !(list.unique && members.iter().enumerate().any(is_repeated))
            }),
            Shape::Map { of, least, .. } => self
                .values_if_map()
                .is_some_and(|values| values.len() >= *least && values.iter().all(|value| value.has_shape(of))),
            Shape::Conditions { least, .. } => self.is_map() && self.entries().len() >= *least,
        }
    }

    fn may_be(&self, scalars: Scalars) -> bool {
        match scalars {
            Scalars::Text => self.is_text(),
            Scalars::Spelling => self.is_single() && !self.is_number(),
            Scalars::Written => self.is_single(),
        }
    }

    fn check_text(&self, text: &Text, report: ReportMismatch) -> Option<()> {
        let found = match text.scalars {
            Scalars::Text => self.text()?,
            Scalars::Spelling | Scalars::Written => self.written()?,
        };
        if text.accepts(found) && self.may_be(text.scalars) {
            return Some(());
        }
        match text.exception(found) {
            Some(must) => self.must(must),
            None => report(self, text.must),
        }
        None
    }

    fn check_list(&self, list: &List) -> Option<()> {
        let members = match list.of {
            Shape::Conditions { .. } => self.list_of_mappings()?,
            _ => self.list()?,
        };
        if members.len() < list.least {
            self.must(list.empty);
            return None;
        }
        if members.len() > list.most {
            let what = format_args!("must have at most {} {}, has {}", list.most, list.members, members.len());
            self.wrong(what, None);
            return None;
        }
        Some(())
    }

    fn check_either(&self, shape: &Shape, of: &[Shape], report: ReportMismatch) -> Option<()> {
        if let Some(map) = of.iter().find(|shape| shape.is_map() && self.is_map()) {
            return self.check(map);
        }
        let single: Vec<&Shape> = of.iter().filter(|shape| !shape.is_map()).collect();
        if let [only] = single[..] {
            return self.check_reporting(only, report);
        }
        if single.iter().any(|shape| self.has_shape(shape)) {
            return Some(());
        }
        let be_single = single.iter().find_map(|shape| shape.must_be_single());
        match be_single.filter(|_| !self.is_single()) {
            Some(must) => self.must(must),
            None if single.iter().any(|shape| matches!(shape, Shape::Whole(_))) => {
                self.must_hinting(shape.must(), self.hint_for_number());
            }
            None => report(self, &shape.must()),
        }
        None
    }
}
