// Past events of a job for a user, a page at a time, out of the store.
#pragma once

#include <variant>

#include "broker/service/bus.h"
#include "broker/store.h"

namespace weft::broker {

// New ones reach the client from its gate, which has them all from the event stream and is told with the last
// page where to go on. `is_open`: the job has not ended. Refusal: there is no such job of theirs; what the
// store says.
std::variant<EventsPage, proto::Refusal> events_page(Store& store, const SendEvents& request, bool is_open);

}  // namespace weft::broker
