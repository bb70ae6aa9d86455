// What a link's machine (link.h) wants done, in order.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "proto/messages.h"

namespace weft::peer::link_effects {

struct Dial {
  std::string address{};  // empty: through the relay. Answer: on_dialled
  Duration deadline{};
};
struct StopDialling {};
struct DialStream {  // Answer: on_stream_dialled
  uint32_t stream = 0;
  std::string address{};
};
struct Wake {  // call on_wake then; one that was asked for before is not needed any more
  Duration after{};
};
struct Say {
  uint64_t connection = 0;
  proto::Message message{};
};
// Tensors go over it from now on, those first that the outbox was told to resume with.
struct Begin {
  uint64_t connection = 0;
  bool first = false;  // the link was not up before
};
struct BeginStream {  // and over this one, too
  uint64_t connection = 0;
};
// What came of tensors that are not whole comes again; no further connection is dialled for it any more.
struct EndSession {};
struct Close {
  uint64_t connection = 0;
};
struct Fail {  // once, and nothing after it: the stage cannot go on
  Error error;
};
using Effect =
    std::variant<Dial, StopDialling, DialStream, Wake, Say, Begin, BeginStream, EndSession, Close, Fail>;
using Effects = std::vector<Effect>;

}  // namespace weft::peer::link_effects
