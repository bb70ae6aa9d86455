#include "configs/reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace weft::configs {
namespace {

std::string shown(const Node& node) {
  switch (node.kind) {
    case Node::Kind::Null:
      return "nothing";
    case Node::Kind::Scalar:
      return "'" + node.text.substr(0, 60) + "'";
    case Node::Kind::Sequence:
      return "a list";
    case Node::Kind::Map:
      return "a map";
  }
  return "";
}

std::string plain(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc() ? std::string(buffer, end) : "?";
}

std::string to_string(const Range& range) {
  const bool no_max = std::isinf(range.max);
  std::string text = std::string(range.above_min ? "above "
                                 : no_max        ? "at least "
                                                 : "from ") +
                     plain(range.min);
  if (no_max) return text;
  return text +
         (range.above_min   ? (range.below_max ? " and below " : " and at most ")
          : range.below_max ? " to below "
                            : " to ") +
         plain(range.max);
}

// "losses[2].type" as "losses[].type".
std::string without_indices(const std::string& path) {
  std::string text;
  bool inside = false;
  for (const char c : path) {
    if (c == ']') inside = false;
    if (!inside) text += c;
    if (c == '[') inside = true;
  }
  return text;
}

// YAML's plain numbers, and nothing that only begins like one. A leading plus is YAML's, not from_chars'.
template <typename T>
std::optional<T> parse_plain(const Node& node) {
  if (node.kind != Node::Kind::Scalar || node.quoted) return std::nullopt;
  std::string_view text = node.text;
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

}  // namespace

void Problems::add(ErrorCode code, const Location& where, const std::string& what) {
  if (count_ == 0) code_ = code;
  if (++count_ <= kShownMax) text_ += (text_.empty() ? "" : "\n") + configs::to_string(where) + ": " + what;
}

Error Problems::error() const {
  WEFT_CHECK(count_ > 0);
  if (count_ <= kShownMax) return {code_, text_};
  return {code_, text_ + "\nand " + std::to_string(count_ - kShownMax) + " more problems"};
}

MapReader::MapReader(const Node& node, std::string path, Problems& problems)
    : node_(node), path_(std::move(path)), problems_(problems) {
  if (!is_map())
    problem(node.where, (path_.empty() ? "the file" : "`" + path_ + "`") +
                            " must be a map (key: value), not " + shown(node));
}

const Node* MapReader::take(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  if (AskedKeys* asked = problems_.asked()) asked->takes.try_emplace(without_indices(path_of(key)));
  const Entry* entry = node_.find(key);
  return entry ? &entry->value : nullptr;
}

void MapReader::note(const Node* node, std::string_view key, const std::string& takes) {
  if (!problems_.asked()) return;
  const Entry* entry = node_.find(key);
  if (node && (!entry || node != &entry->value)) return;
  problems_.asked()->takes[without_indices(path_of(key))] = takes;
}

const Node* MapReader::require(std::string_view key, std::string_view hint) {
  const Node* node = take(key);
  if (!node && is_map()) problem(where(), "`" + path_of(key) + "` is missing; " + std::string(hint));
  return node;
}

std::optional<double> MapReader::parse_number(const Node& node, std::string_view key, Range range) {
  note(&node, key, std::isinf(range.min) ? "a number" : "a number " + to_string(range));
  const auto value = parse_plain<double>(node);
  if (!value || !std::isfinite(*value)) {
    problem(node.where, "`" + path_of(key) + "` must be a number, not " + shown(node));
    return std::nullopt;
  }
  const bool good = (range.above_min ? *value > range.min : *value >= range.min) &&
                    (range.below_max ? *value < range.max : *value <= range.max);
  if (good) return value;
  problem(node.where, "`" + path_of(key) + "` is " + node.text + "; it must be " + to_string(range));
  return std::nullopt;
}

std::optional<uint64_t> MapReader::parse_count(const Node& node, std::string_view key, uint64_t min,
                                               uint64_t max) {
  note(&node, key, "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  const auto value = parse_plain<uint64_t>(node);
  if (value && *value >= min && *value <= max) return value;
  problem(node.where, "`" + path_of(key) + "` must be a whole number from " + std::to_string(min) + " to " +
                          std::to_string(max) + ", not " + shown(node));
  return std::nullopt;
}

std::optional<std::string> MapReader::parse_text(const Node& node, std::string_view key) {
  note(&node, key, "a text");
  if (node.kind == Node::Kind::Scalar && !node.text.empty() && node.text.find('\0') == std::string::npos)
    return node.text;
  problem(node.where, "`" + path_of(key) + "` must be a text, not " + shown(node));
  return std::nullopt;
}

std::vector<std::string> MapReader::parse_patterns(const Node& node, std::string_view key, size_t least,
                                                   std::string_view example) {
  std::vector<std::string> patterns;
  if (node.kind != Node::Kind::Sequence || node.items.size() < least) {
    problem(node.where, "`" + path_of(key) + "` must be a list of patterns, as " + std::string(example));
    return patterns;
  }
  for (const Node& item : node.items)
    if (auto pattern = parse_text(item, key)) patterns.push_back(std::move(*pattern));
  return patterns;
}

double MapReader::number(std::string_view key, double otherwise, Range range) {
  const Node* node = take(key);
  return node ? parse_number(*node, key, range).value_or(otherwise) : otherwise;
}

uint64_t MapReader::count(std::string_view key, uint64_t otherwise, uint64_t min, uint64_t max) {
  const Node* node = take(key);
  return node ? parse_count(*node, key, min, max).value_or(otherwise) : otherwise;
}

bool MapReader::flag(std::string_view key, bool otherwise) {
  const Node* node = take(key);
  note(node, key, "`true` or `false`");
  if (!node) return otherwise;
  if (node->kind == Node::Kind::Scalar && !node->quoted) {
    for (const std::string_view word : {"true", "True", "TRUE"})
      if (node->text == word) return true;
    for (const std::string_view word : {"false", "False", "FALSE"})
      if (node->text == word) return false;
  }
  problem(node->where, "`" + path_of(key) + "` must be true or false, not " + shown(*node));
  return otherwise;
}

std::string MapReader::text(std::string_view key, std::string_view otherwise) {
  const Node* node = take(key);
  return node ? parse_text(*node, key).value_or(std::string(otherwise)) : std::string(otherwise);
}

std::string MapReader::required_text(std::string_view key, std::string_view hint) {
  const Node* node = require(key, hint);
  return node ? parse_text(*node, key).value_or("") : "";
}

std::optional<size_t> MapReader::choice_index(const Node* node, std::string_view key,
                                              const std::vector<std::string>& names) {
  std::string takes;
  for (const std::string& name : names) takes += (takes.empty() ? "one of `" : ", `") + name + "`";
  note(node, key, takes);
  if (!node) return std::nullopt;
  if (node->kind == Node::Kind::Scalar)
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i] == node->text) return i;
  const bool scalar = node->kind == Node::Kind::Scalar;
  problem(node->where,
          "`" + path_of(key) + "` cannot be " + shown(*node) + suggestion(scalar ? node->text : "", names));
  return std::nullopt;
}

void MapReader::check_format() {
  const Node* said = take("format");
  if (said != nullptr && parse_count(*said, "format", 0, uint64_t{1} << 32).value_or(1) != 1)
    problem(said->where, "`format: " + said->text + "` is not known here; this weft reads format 1",
            ErrorCode::VersionMismatch);
}

void MapReader::finish() {
  for (const Entry& entry : node_.entries)
    if (std::find(known_.begin(), known_.end(), entry.key) == known_.end())
      problem(entry.where,
              "unknown key `" + path_of(entry.key.substr(0, 60)) + "`" + suggestion(entry.key, known_));
}

}  // namespace weft::configs
