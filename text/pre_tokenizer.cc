#include "text/pre_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "text/json.h"
#include "text/normalizer.h"
#include "text/utf8.h"

namespace weft::text {
namespace {

using Json = nlohmann::json;

// GPT-2's, which ByteLevel brings along (encoder.py in OpenAI's gpt-2 repository).
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigit = R"([\p{N}\x{11DE0}-\x{11DE9}])";  // the latter are of Unicode 17
constexpr std::string_view kPunctuation = R"([!-\/:-@\[-`{-~\p{P}])";

std::string_view piece_of(const Pieces& pieces, const Match& place) {
  return pieces.text.substr(place.begin, place.end - place.begin);
}

}  // namespace

Result<PreTokenizer> PreTokenizer::parse(const Json& pre_tokenizer) {
  PreTokenizer made;
  if (!pre_tokenizer.is_null()) WEFT_TRY_STATUS(made.add(pre_tokenizer));
  return made;
}

void PreTokenizer::split_before_runs(std::string_view mark, std::vector<std::string> not_behind) {
  steps_.emplace_back(SplitBeforeRuns{std::string(mark), std::move(not_behind)});
}

Status PreTokenizer::add(const Json& pre_tokenizer) {
  WEFT_TRY(const std::string type, type_of(pre_tokenizer));
  if (is_byte_level_)
    return fail(ErrorCode::Unsupported, "the pre-tokenizer " + printable(type) + " stands behind ByteLevel");
  if (type == "Sequence") {
    WEFT_TRY(const Json* const parts, array_member(pre_tokenizer, "pretokenizers"));
    for (const Json& part : *parts) WEFT_TRY_STATUS(add(part));
    return {};
  }
  if (steps_.size() >= kStepsInSequenceMax)
    return fail(ErrorCode::OutOfRange,
                "has more than " + std::to_string(kStepsInSequenceMax) + " pre-tokenizers");
  return add_one(type, pre_tokenizer);
}

Status PreTokenizer::add_one(const std::string& type, const Json& pre_tokenizer) {
  if (type == "Split") return add_split(pre_tokenizer);
  if (type == "ByteLevel") return add_byte_level(pre_tokenizer);
  if (type == "Metaspace") return add_metaspace(pre_tokenizer);
  if (type == "Digits") {
    WEFT_TRY(const bool is_single, bool_member(pre_tokenizer, "individual_digits", false));
    return add_pattern(kDigit, is_single ? Behaviour::Isolated : Behaviour::Contiguous);
  }
  if (type == "Punctuation") {
    WEFT_TRY(const Behaviour behaviour, parse_behaviour(pre_tokenizer, Behaviour::Isolated));
    return add_pattern(kPunctuation, behaviour);
  }
  if (type == "WhitespaceSplit") return add_pattern(R"(\s)", Behaviour::Removed);
  return fail(ErrorCode::Unsupported, "the pre-tokenizer " + printable(type) +
                                          " is not supported; Sequence, Split, ByteLevel, Metaspace, Digits, "
                                          "Punctuation and WhitespaceSplit are");
}

Status PreTokenizer::add_pattern(std::string_view expression, Behaviour behaviour) {
  WEFT_TRY(Pattern pattern, Pattern::compile(expression));
  steps_.emplace_back(Split{std::move(pattern), behaviour, false});
  return {};
}

Result<PreTokenizer::Behaviour> PreTokenizer::parse_behaviour(const Json& object, Behaviour otherwise) {
  if (member(object, "behavior").is_null()) return otherwise;
  WEFT_TRY(const std::string name, string_member(object, "behavior"));
  if (name == "Removed") return Behaviour::Removed;
  if (name == "Isolated") return Behaviour::Isolated;
  if (name == "MergedWithPrevious") return Behaviour::MergedWithPrevious;
  if (name == "MergedWithNext") return Behaviour::MergedWithNext;
  if (name == "Contiguous") return Behaviour::Contiguous;
  return fail(ErrorCode::Unsupported, "the behavior " + printable(name) + " of a split is not known");
}

Status PreTokenizer::add_split(const Json& split) {
  WEFT_TRY(Pattern pattern, parse_pattern(member(split, "pattern")));
  WEFT_TRY(const Behaviour behaviour, parse_behaviour(split, Behaviour::Isolated));
  WEFT_TRY(const bool invert, bool_member(split, "invert", false));
  steps_.emplace_back(Split{std::move(pattern), behaviour, invert});
  return {};
}

Status PreTokenizer::add_byte_level(const Json& byte_level) {
  WEFT_TRY(const bool has_prefix, bool_member(byte_level, "add_prefix_space", true));
  WEFT_TRY(const bool has_pattern, bool_member(byte_level, "use_regex", true));
  if (has_prefix) steps_.emplace_back(BlankPrefix{});
  if (has_pattern) WEFT_TRY_STATUS(add_pattern(kGpt2, Behaviour::Isolated));
  is_byte_level_ = true;
  return {};
}

Status PreTokenizer::add_metaspace(const Json& metaspace) {
  WEFT_TRY(std::string mark, string_member(metaspace, "replacement", std::string(kBlankMark)));
  if (mark.empty() || first_character(mark).size != mark.size())
    return fail(ErrorCode::Corrupted, "'replacement' of Metaspace is not one character");
  WEFT_TRY(const bool adds, bool_member(metaspace, "add_prefix_space", true));
  WEFT_TRY(const std::string scheme, string_member(metaspace, "prepend_scheme", adds ? "always" : "never"));
  if (scheme != "always" && scheme != "first" && scheme != "never")
    return fail(ErrorCode::Unsupported, "the prepend_scheme " + printable(scheme) + " is not known");
  const Prefix prefix =
      scheme == "always" ? Prefix::Always : (scheme == "first" ? Prefix::First : Prefix::Never);
  WEFT_TRY(const bool splits, bool_member(metaspace, "split", true));
  steps_.emplace_back(Metaspace{mark, prefix});
  if (splits) steps_.emplace_back(Split{Pattern::literal(mark), Behaviour::MergedWithNext, false});
  return {};
}

Status PreTokenizer::apply(std::string_view text, bool is_first, Pieces& pieces) const {
  pieces.text = text;
  pieces.places.clear();
  if (!text.empty()) pieces.places.push_back({0, text.size()});
  for (const Step& step : steps_) {
    Status applied;
    if (const auto* const split = std::get_if<Split>(&step))
      applied = apply(*split, pieces);
    else if (const auto* const prefix = std::get_if<BlankPrefix>(&step))
      applied = apply(*prefix, pieces);
    else if (const auto* const metaspace = std::get_if<Metaspace>(&step))
      applied = apply(*metaspace, is_first, pieces);
    else
      applied = apply(std::get<SplitBeforeRuns>(step), pieces);
    WEFT_TRY_STATUS(applied);
  }
  return {};
}

Status PreTokenizer::apply(const Split& split, Pieces& pieces) {
  PatternSearch search(split.pattern, pieces.text.size());
  std::vector<Match> places, matches;
  places.reserve(pieces.text.size() / 4);
  std::vector<Part> parts;
  for (const Match& piece : pieces.places) {
    matches.clear();
    WEFT_TRY_STATUS(search.find_all(piece_of(pieces, piece), piece.begin, matches));
    parts.clear();
    size_t at = piece.begin;
    for (const Match& match : matches) {
      if (match.begin > at) parts.push_back({{at, match.begin}, split.invert});
      parts.push_back({match, !split.invert});
      at = match.end;
    }
    if (at < piece.end) parts.push_back({{at, piece.end}, split.invert});
    append(parts, split.behaviour, places);
  }
  pieces.places = std::move(places);
  return {};
}

// As Hugging Face's NormalizedString::split does it. Pieces without a byte are left out.
void PreTokenizer::append(const std::vector<Part>& parts, Behaviour behaviour, std::vector<Match>& places) {
  const size_t first = places.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [place, is_match] = parts[i];
    const bool was_match = i > 0 && parts[i - 1].is_match;
    bool joins = false;  // the piece before
    switch (behaviour) {
      case Behaviour::Removed:
        if (is_match) continue;
        break;
      case Behaviour::Isolated:
        break;
      case Behaviour::MergedWithPrevious:
        joins = is_match && !was_match;
        break;
      case Behaviour::MergedWithNext:
        joins = !is_match && was_match;
        break;
      case Behaviour::Contiguous:
        joins = i > 0 && is_match == was_match;
        break;
    }
    if (joins && i > 0)
      places.back().end = place.end;
    else
      places.push_back(place);
  }
  const auto is_empty = [](const Match& place) { return place.begin == place.end; };
  places.erase(std::remove_if(places.begin() + static_cast<std::ptrdiff_t>(first), places.end(), is_empty),
               places.end());
}

namespace {

// The pieces once more, each as `write` writes it.
template <typename Write>
void rewrite(Pieces& pieces, Write&& write) {
  std::string changed;
  changed.reserve(pieces.text.size() + pieces.text.size() / 2);
  for (Match& place : pieces.places) {
    const size_t begin = changed.size();
    write(piece_of(pieces, place), changed);
    place = {begin, changed.size()};
  }
  pieces.changed = std::move(changed);
  pieces.text = pieces.changed;
}

}  // namespace

Status PreTokenizer::apply(const BlankPrefix&, Pieces& pieces) {
  rewrite(pieces, [](std::string_view piece, std::string& out) {
    if (!piece.starts_with(' ')) out += ' ';
    out += piece;
  });
  return {};
}

Status PreTokenizer::apply(const Metaspace& metaspace, bool is_first, Pieces& pieces) {
  bool adds = metaspace.prefix == Prefix::Always || (metaspace.prefix == Prefix::First && is_first);
  rewrite(pieces, [&](std::string_view piece, std::string& out) {
    if (adds && !piece.starts_with(' ') && !piece.starts_with(metaspace.mark)) out += metaspace.mark;
    adds = metaspace.prefix == Prefix::Always;
    for (const char c : piece) {
      if (c == ' ')
        out += metaspace.mark;
      else
        out += c;
    }
  });
  return {};
}

Status PreTokenizer::apply(const SplitBeforeRuns& split, Pieces& pieces) {
  std::vector<Match> places;
  places.reserve(pieces.text.size() / 4);
  const std::string_view mark = split.mark;
  for (const Match& place : pieces.places) {
    const std::string_view piece = piece_of(pieces, place);
    size_t begin = 0, run_end = 0;  // of the piece that goes on; of the marks last seen
    for (size_t at = piece.find(mark); at != std::string_view::npos; at = piece.find(mark, run_end)) {
      const auto ends_before = [&](const std::string& text) { return piece.substr(0, at).ends_with(text); };
      if (at > run_end && std::none_of(split.not_behind.begin(), split.not_behind.end(), ends_before)) {
        places.push_back({place.begin + begin, place.begin + at});
        begin = at;
      }
      run_end = at + mark.size();
    }
    places.push_back({place.begin + begin, place.end});
  }
  pieces.places = std::move(places);
  return {};
}

}  // namespace weft::text
