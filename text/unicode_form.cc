#include "text/unicode_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "text/unicode_ages.h"
#include "text/utf8.h"

namespace weft::text {
namespace {

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

int combining_class(int32_t code) { return utf8proc_get_property(code)->combining_class; }

void append_decomposed(std::vector<int32_t>& codes, int32_t code, int options) {
  int32_t parts[32];  // the longest decomposition has 18
  int boundary = 0;
  const auto count =
      utf8proc_decompose_char(code, parts, 32, static_cast<utf8proc_option_t>(options), &boundary);
  WEFT_CHECK(count > 0 && count <= 32);
  codes.insert(codes.end(), parts, parts + count);
}

// The canonical order of combining marks. utf8proc's own takes quadratic time for a run of them.
void order_marks(std::vector<int32_t>& codes) {
  for (auto at = codes.begin(); at != codes.end();) {
    if (combining_class(*at) == 0) {
      ++at;
      continue;
    }
    const auto end = std::find_if(at, codes.end(), [](int32_t code) { return combining_class(code) == 0; });
    std::stable_sort(at, end, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    at = end;
  }
}

// Characters that combine with none outside of them.
void append_ordered(std::string& out, std::vector<int32_t>& codes, bool composes) {
  order_marks(codes);
  size_t count = codes.size();
  if (composes)
    count = static_cast<size_t>(
        utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(count),
                                 static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE)));
  for (size_t i = 0; i < count; ++i) append_character(out, static_cast<char32_t>(codes[i]));
  codes.clear();
}

// A part of a text whose characters do not combine with those outside. REQUIRES: valid UTF-8.
void append_form(std::string& out, std::string_view part, UnicodeForm form) {
  const bool composes = form == UnicodeForm::NFC || form == UnicodeForm::NFKC;
  const bool is_compatible = form == UnicodeForm::NFKC || form == UnicodeForm::NFKD;
  std::vector<int32_t> codes;
  while (!part.empty()) {
    const Character character = first_character(part);
    if (is_young_for_normalization(character.code)) {
      append_ordered(out, codes, composes);
      out += part.substr(0, character.size);
    } else {
      append_decomposed(codes, static_cast<int32_t>(character.code),
                        UTF8PROC_DECOMPOSE | (is_compatible ? UTF8PROC_COMPAT : 0));
    }
    part.remove_prefix(character.size);
  }
  append_ordered(out, codes, composes);
}

// The same of bytes that may be anything: what is no character combines with none.
void append_run(std::string& out, std::string_view run, UnicodeForm form) {
  while (!run.empty()) {
    const size_t valid = valid_prefix(run);
    append_form(out, run.substr(0, valid), form);
    run.remove_prefix(valid);
    if (run.empty()) break;
    const size_t size = first_character(run).size;
    out += run.substr(0, size);
    run.remove_prefix(size);
  }
}

}  // namespace

std::string normalize(std::string_view text, UnicodeForm form) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    // ASCII before ASCII combines with nothing.
    size_t plain = 0;
    while (plain < text.size() && is_ascii(text[plain])) ++plain;
    if (plain > 0 && plain < text.size()) --plain;
    out += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;

    size_t end = 1;
    while (end < text.size() && !is_ascii(text[end])) ++end;
    append_run(out, text.substr(0, end), form);
    text.remove_prefix(end);
  }
  return out;
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    if (!character.is_valid)
      out += text.substr(0, character.size);
    else if (character.code == 0x130)  // the only one that becomes two: i, and a dot above
      out += "i\xCC\x87";
    else
      append_character(out, static_cast<char32_t>(utf8proc_tolower(static_cast<int32_t>(character.code))));
    text.remove_prefix(character.size);
  }
  return out;
}

}  // namespace weft::text
