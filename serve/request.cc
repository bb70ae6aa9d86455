#include "serve/request.h"

#include <string>

namespace weft::serve {
namespace {

std::string text_of(int64_t value) { return std::to_string(value); }

// The most positions that fit, at most `context`.
int64_t most_positions(int64_t context, const std::function<bool(int64_t positions)>& fits) {
  int64_t low = 0, high = context;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (fits(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace

int64_t RequestLimits::positions_of(const Request& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  return request.tokens_max < 0 ? context : prompt + request.tokens_max;
}

Status RequestLimits::check(const Request& request,
                            const std::function<bool(int64_t positions)>& fits) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0)
    return fail(ErrorCode::InvalidArgument, "the prompt is empty: it needs a token to start from");
  for (const int64_t token : request.prompt)
    if (token < 0 || token >= vocabulary)
      return fail(ErrorCode::InvalidArgument,
                  "the prompt has token " + text_of(token) + ", the model has " + text_of(vocabulary));
  if (prompt > context)
    return fail(ErrorCode::OutOfRange,
                "the prompt has " + text_of(prompt) + " tokens, the model's context is " + text_of(context));
  if (request.tokens_max > context - prompt)
    return fail(ErrorCode::OutOfRange, "a prompt of " + text_of(prompt) + " tokens and max_tokens of " +
                                           text_of(request.tokens_max) +
                                           " go beyond the model's context of " + text_of(context));
  if (const int64_t positions = positions_of(request); !fits(positions))
    return fail(ErrorCode::OutOfRange,
                "a sequence of " + text_of(positions) +
                    " tokens needs more memory than there is; the largest that fits has " +
                    text_of(most_positions(context, fits)));
  return {};
}

}  // namespace weft::serve
