// What is asked of a model, and how its text is told.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "serve/sampler.h"

namespace weft::serve {

struct Request {
  // At least one token. The last ones may have been drawn before: what follows is as if nothing had come
  // between.
  std::vector<int64_t> prompt;
  int64_t tokens_max = -1;  // to be generated; -1: up to the context
  SamplingOptions sampling{};
  std::vector<int64_t> ends{};  // tokens that end it; they are not told
};

enum class Finish : uint8_t {
  Stop,    // a token that ends it, or the listener has had enough
  Length,  // tokens_max, or the context
  Cancelled,
  Failed,
};

struct Generated {
  Draw draw;
  int64_t position = 0;  // of the token in the sequence
};

// Told on the thread that drives the engine. It may add and cancel requests, but not tick().
struct Listener {
  std::function<bool(const Generated&)> on_token;                   // false: enough
  std::function<void(Finish finish, const Status& status)> on_end;  // once
};

// What a model can take of one request.
struct RequestLimits {
  int64_t context = 0, vocabulary = 0;

  // Of its sequence, at most. REQUIRES: the prompt and tokens_max fit the context.
  int64_t positions_of(const Request& request) const;
  // `fits`: whether there is memory for so many positions; for more than do not fit there is none, either.
  // Errors: InvalidArgument for an empty prompt and for tokens that the model does not have; OutOfRange when
  // prompt and tokens_max do not fit the context, or not even an empty memory (then with how many positions
  // would).
  Status check(const Request& request, const std::function<bool(int64_t positions)>& fits) const;
};

}  // namespace weft::serve
