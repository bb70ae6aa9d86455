#include "broker/service/event_pages.h"

#include <algorithm>

#include "broker/jobs/answers.h"

namespace weft::broker {

namespace {
constexpr size_t kEventsAtOnce = 500;
constexpr size_t kEventBytesAtOnce = 1 << 20;  // of their texts, about

// Cuts them to a page. Whether there were more.
bool cut_to_page(std::vector<proto::JobEvent>& events) {
  const bool is_full = events.size() == kEventsAtOnce;
  size_t bytes = 0, count = 0;
  for (; count < events.size() && bytes < kEventBytesAtOnce; ++count) bytes += events[count].text.size();
  const bool is_cut = count < events.size();
  events.resize(count);
  return is_full || is_cut;
}

bool ends_with_its_end(const std::vector<proto::JobEvent>& events) {
  return !events.empty() && events.back().kind == proto::JobEventKind::State &&
         events.back().state >= proto::JobState::Finished;
}
}  // namespace

std::variant<EventsPage, proto::Refusal> events_page(Store& store, const SendEvents& request, bool is_open) {
  const auto [job, asked_from, follow] = request.request;
  const uint64_t from = std::max<uint64_t>(1, asked_from);
  const auto submitter = submitter_of(store, job);
  if (!submitter || !*submitter || !may_read(request.whose, **submitter))
    return proto::Refusal{
        .code = ErrorCode::NotFound,
        .message = "there is no job " + std::to_string(job) + " of yours here: weft jobs lists them"};
  auto events = store.events(job, from, kEventsAtOnce);
  if (!events) return proto::Refusal{.code = events.error().code, .message = events.error().message};
  const bool has_more = cut_to_page(*events);
  EventsPage page{.connection = request.connection, .job = job, .events = std::move(*events)};
  const uint64_t last = page.events.empty() ? from - 1 : page.events.back().sequence;
  if (has_more)
    page.rest = proto::GetEvents{.job = job, .from_sequence = last + 1, .follow = follow};
  else if (follow && is_open && !ends_with_its_end(page.events))
    page.follows_after = last;
  return page;
}

}  // namespace weft::broker
