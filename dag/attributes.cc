#include "dag/attributes.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/check.h"

namespace weft::dag {

std::string_view to_string(Attr name) {
#define WEFT_ATTRIBUTE(name, text, type) #text,
  static constexpr std::string_view kNames[] = {WEFT_ATTRIBUTES(WEFT_ATTRIBUTE)};
#undef WEFT_ATTRIBUTE
  return kNames[static_cast<size_t>(name)];
}

AttrType type_of(Attr name) {
#define WEFT_ATTRIBUTE(name, text, type) AttrType::type,
  static constexpr AttrType kTypes[] = {WEFT_ATTRIBUTES(WEFT_ATTRIBUTE)};
#undef WEFT_ATTRIBUTE
  return kTypes[static_cast<size_t>(name)];
}

void Attributes::set(Attr name, AttrValue value) {
  auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                             [](const auto& entry, Attr key) { return entry.first < key; });
  if (at != entries_.end() && at->first == name)
    at->second = std::move(value);
  else
    entries_.insert(at, {name, std::move(value)});
}

const AttrValue* Attributes::find(Attr name) const {
  for (const auto& [key, value] : entries_)
    if (key == name) return &value;
  return nullptr;
}

int64_t Attributes::get_int(Attr name, int64_t otherwise) const {
  const AttrValue* value = find(name);
  if (!value) return otherwise;
  WEFT_CHECK(std::holds_alternative<int64_t>(*value));
  return std::get<int64_t>(*value);
}
double Attributes::get_double(Attr name, double otherwise) const {
  const AttrValue* value = find(name);
  if (!value) return otherwise;
  WEFT_CHECK(std::holds_alternative<double>(*value));
  return std::get<double>(*value);
}
const Ints& Attributes::get_ints(Attr name) const {
  static const Ints kEmpty;
  const AttrValue* value = find(name);
  if (!value) return kEmpty;
  WEFT_CHECK(std::holds_alternative<Ints>(*value));
  return std::get<Ints>(*value);
}
const std::string& Attributes::get_string(Attr name) const {
  static const std::string kEmpty;
  const AttrValue* value = find(name);
  if (!value) return kEmpty;
  WEFT_CHECK(std::holds_alternative<std::string>(*value));
  return std::get<std::string>(*value);
}

std::string to_string(const Attributes& attributes) {
  std::string text;
  for (const auto& [name, value] : attributes.entries()) {
    if (!text.empty()) text += ' ';
    text += std::string(to_string(name)) + '=';
    if (const auto* integer = std::get_if<int64_t>(&value)) {
      text += std::to_string(*integer);
    } else if (const auto* d = std::get_if<double>(&value)) {
      std::array<char, 32> digits{};
      const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), *d).ptr;
      text.append(digits.data(), end);
    } else if (const auto* ints = std::get_if<Ints>(&value)) {
      text += '[';
      for (size_t i = 0; i < ints->size(); ++i) text += (i ? "," : "") + std::to_string((*ints)[i]);
      text += ']';
    } else {
      text += '"' + std::get<std::string>(value) + '"';
    }
  }
  return text;
}

}  // namespace weft::dag
