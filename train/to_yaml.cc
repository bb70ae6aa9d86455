#include <algorithm>
#include <cctype>
#include <string>

#include "train/submission.h"

namespace weft::train {
namespace {

using configs::Entry;
using configs::Node;

// A scalar that means the same with and without quotes around it, but for being a number or a word like true.
bool is_plain(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with('+') || rest.starts_with('-')) rest.remove_prefix(1);
  if (rest.starts_with('.')) rest.remove_prefix(1);
  const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0; };
  return !rest.empty() && is_letter(static_cast<unsigned char>(rest.front())) &&
         std::all_of(rest.begin(), rest.end(), [&](char c) {
           return is_letter(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '+' || c == '-';
         });
}

std::string quoted(const std::string& text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      result += {'\\', c};
    else if (byte < 0x20 || byte == 0x7f)
      result += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    else
      result += c;
  }
  return result + "\"";
}

std::string flow(const Node& node) {
  std::string text;
  switch (node.kind) {
    case Node::Kind::Null:
      return "null";
    case Node::Kind::Scalar:
      return node.quoted || !is_plain(node.text) ? quoted(node.text) : node.text;
    case Node::Kind::Sequence:
      for (const Node& item : node.items) text += (text.empty() ? "" : ", ") + flow(item);
      return "[" + text + "]";
    case Node::Kind::Map:
      for (const Entry& entry : node.entries)
        text += (text.empty() ? "" : ", ") + quoted(entry.key) + ": " + flow(entry.value);
      return "{" + text + "}";
  }
  return text;
}

}  // namespace

std::string to_yaml(const Node& root) {
  if (root.kind != Node::Kind::Map) return flow(root) + "\n";
  std::string text;
  for (const Entry& entry : root.entries)
    text += (is_plain(entry.key) ? entry.key : quoted(entry.key)) + ": " + flow(entry.value) + "\n";
  return text.empty() ? "{}\n" : text;
}

}  // namespace weft::train
