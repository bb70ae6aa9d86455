// Where an answer's pieces become HTTP. Internal to web/.
#pragma once

#include <memory>

#include "web/server.h"
#include "web/service.h"

namespace weft::web {

Response error_response(const ApiError& error);

// Collects, and sends one object at the end.
std::shared_ptr<Sink> make_whole_sink(Responder responder, size_t text_max);
// Sends each piece as an event. Those that were seen are left out; `last_event` is what a client says of
// them, empty: nothing was seen.
std::shared_ptr<Sink> make_stream_sink(Responder responder, std::string last_event = {});

}  // namespace weft::web
