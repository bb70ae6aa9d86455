#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include <pcre2.h>

#include <ctime>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "text/pattern_syntax.h"
#include "text/utf8.h"

namespace weft::text {

// What PCRE2 makes, and how each is let go.
namespace pcre {
template <auto release>
struct Release {
  template <typename T>
  void operator()(T* pointer) const {
    release(pointer);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Release<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Release<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Release<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Release<pcre2_jit_stack_free>>;
}  // namespace pcre

namespace {

constexpr uint32_t kStepsAtFirst = 100'000;  // of one match; PCRE2 counts where it may have to come back
constexpr uint32_t kStepsMore = 100'000;     // and of a second try, beside 8 for each byte of the text
constexpr uint64_t kStepsMax = 100'000'000;
constexpr uint32_t kHeapMax = 16 << 10;        // KiB, where PCRE2 has no machine code
constexpr size_t kJitStackMax = 4 << 20;       // bytes
constexpr uint32_t kGroupsMax = 50;            // within each other
constexpr unsigned kMatchesBetweenLooks = 32;  // at the clock
constexpr double kSecondsMin = 0.05, kSecondsForByte = 5e-7;
constexpr double kWithoutJit = 8;  // times as slow

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename T>
T* there(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

std::string message_of(int error) {
  PCRE2_UCHAR message[128] = {};
  pcre2_get_error_message(error, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

tl::unexpected<Error> too_long() {
  return fail(
      ErrorCode::ResourceExhausted,
      "the tokenizer's pattern takes too long on this text; a pattern that goes back and forth over the "
      "text has no place in a tokenizer");
}

}  // namespace

struct Pattern::Code {
  explicit Code(pcre2_code* made) : code(made) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
  bool is_jit = false;
};

Result<Pattern> Pattern::compile(std::string_view expression) {
  WEFT_TRY(const std::string translated, to_pcre2(expression));
  const pcre::CompileContext context(there(pcre2_compile_context_create(nullptr)));
  pcre2_set_parens_nest_limit(context.get(), kGroupsMax);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t at = 0;
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* const made = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                         kOptions, &error, &at, context.get());
  if (made == nullptr)
    return fail(ErrorCode::Corrupted, "the pattern '" + printable(expression.substr(0, 80)) +
                                          "': " + message_of(error) + ", before '" +
                                          printable(std::string_view(translated).substr(at, 16)) + "'");
  auto code = std::make_shared<Code>(made);
  code->is_jit = pcre2_jit_compile(made, PCRE2_JIT_COMPLETE) == 0;
  return Pattern(std::move(code));
}

Pattern Pattern::literal(std::string_view text) {
  WEFT_CHECK(!text.empty());
  Pattern pattern(nullptr);
  pattern.literal_ = text;
  return pattern;
}

// What PCRE2 needs for a search, and what it may cost.
struct PatternSearch::State {
  State(size_t text_size, bool is_jit)
      : steps(static_cast<uint32_t>(std::min<uint64_t>(kStepsMore + 8 * uint64_t{text_size}, kStepsMax))),
        seconds((kSecondsMin + kSecondsForByte * static_cast<double>(text_size)) *
                (is_jit ? 1 : kWithoutJit)) {
    pcre2_set_match_limit(context.get(), kStepsAtFirst);
    pcre2_set_heap_limit(context.get(), kHeapMax);
  }
  const pcre::MatchData data{there(pcre2_match_data_create(1, nullptr))};
  const pcre::MatchContext context{there(pcre2_match_context_create(nullptr))};
  pcre::JitStack stack;
  const uint32_t steps;
  const double seconds, began = thread_seconds();
  unsigned until_look = kMatchesBetweenLooks;
};

PatternSearch::PatternSearch(const Pattern& pattern, size_t text_size)
    : pattern_(pattern),
      state_(pattern.code_ == nullptr ? nullptr : std::make_unique<State>(text_size, pattern.code_->is_jit)) {
}
PatternSearch::~PatternSearch() = default;

int PatternSearch::match(std::string_view part, size_t at) {
  const Pattern::Code& code = *pattern_.code_;
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(part.data());
  pcre2_match_data* const data = state_->data.get();
  pcre2_match_context* const context = state_->context.get();
  if (code.is_jit) return pcre2_jit_match(code.code, subject, part.size(), at, 0, data, context);
  return pcre2_match(code.code, subject, part.size(), at, PCRE2_NO_UTF_CHECK, data, context);
}

Result<bool> PatternSearch::find(std::string_view part, size_t at) {
  int result = match(part, at);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT && state_->stack == nullptr) {
    state_->stack.reset(there(pcre2_jit_stack_create(64 << 10, kJitStackMax, nullptr)));
    pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
    result = match(part, at);
  }
  if (result == PCRE2_ERROR_MATCHLIMIT) {  // a long match may take more
    pcre2_set_match_limit(state_->context.get(), state_->steps);
    result = match(part, at);
    pcre2_set_match_limit(state_->context.get(), kStepsAtFirst);
    state_->until_look = 0;
  }
  if (result < 0 && result != PCRE2_ERROR_NOMATCH) return too_long();
  if (state_->until_look-- == 0) {
    state_->until_look = kMatchesBetweenLooks;
    if (thread_seconds() - state_->began > state_->seconds) return too_long();
  }
  return result >= 0;
}

Status PatternSearch::find_valid(std::string_view part, size_t offset, std::vector<Match>& matches) {
  size_t at = 0, last_end = SIZE_MAX;
  while (at <= part.size()) {
    WEFT_TRY(const bool found, find(part, at));
    if (!found) break;
    const size_t* const place = pcre2_get_ovector_pointer(state_->data.get());
    const Match match{place[0], place[1]};
    if (match.begin == match.end && match.end == last_end) {  // once more from the next character on
      if (at >= part.size()) break;
      at += first_character(part.substr(at)).size;
      continue;
    }
    matches.push_back({offset + match.begin, offset + match.end});
    at = last_end = match.end;
  }
  return {};
}

Status PatternSearch::find_all(std::string_view part, size_t offset, std::vector<Match>& matches) {
  const std::string& literal = pattern_.literal_;
  if (state_ == nullptr) {
    for (size_t at = part.find(literal); at != std::string_view::npos;
         at = part.find(literal, at + literal.size()))
      matches.push_back({offset + at, offset + at + literal.size()});
    return {};
  }
  for (size_t from = 0; from < part.size();) {
    const size_t size = valid_prefix(part.substr(from));
    if (size > 0) WEFT_TRY_STATUS(find_valid(part.substr(from, size), offset + from, matches));
    from += size;
    if (from < part.size()) from += first_character(part.substr(from)).size;
  }
  return {};
}

Status Pattern::find_all(std::string_view text, std::vector<Match>& matches) const {
  return PatternSearch(*this, text.size()).find_all(text, 0, matches);
}

}  // namespace weft::text
