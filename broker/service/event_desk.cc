#include "broker/service/event_desk.h"

#include <algorithm>

namespace weft::broker {

namespace {
constexpr size_t kRecentEventsMax = 4096;  // of a job: bridges the way from the store to the stream
constexpr size_t kRecentJobsMax = 64;
constexpr size_t kEndedJobsMax = 4096;
constexpr size_t kPagesMax = 64;  // asked for and not sent, of one connection
// Bytes in its queue: then it gets what is new as it gets what is old.
constexpr size_t kBehindMax = 256 << 10;

bool is_end(const proto::JobEvent& event) {
  return event.kind == proto::JobEventKind::State && event.state >= proto::JobState::Finished;
}
}  // namespace

void EventDesk::get(ConnectionId whose, const proto::GetEvents& request) {
  want(whose, readers_[whose], request);
}

// Not asked for at once: it may be called while readers are gone through, and refusing ends one.
void EventDesk::want(ConnectionId whose, Reader& reader, const proto::GetEvents& request) {
  reader.pages.push_back(request);
  outside_.come_back(whose);
}

// The next page when the one before has been taken: what the store holds is not put into a queue.
void EventDesk::go_on(ConnectionId whose) {
  const auto reader = readers_.find(whose);
  if (reader == readers_.end() || reader->second.pages.empty()) return;
  auto& pages = reader->second.pages;
  if (pages.size() > kPagesMax)
    return connections_.refuse(
        whose, {ErrorCode::ResourceExhausted, "the events of too many jobs are asked for at once"});
  if (!outside_.may_ask(whose) || connections_.bytes_queued(whose) > kBehindMax) return;
  const proto::GetEvents request = pages.front();
  pages.pop_front();
  outside_.ask(whose, request);
}

void EventDesk::on_page(const EventsPage& page) {
  const auto reader = readers_.find(page.connection);
  if (reader == readers_.end()) return;
  for (const proto::JobEvent& event : page.events) connections_.send(page.connection, event);
  if (page.rest) return want(page.connection, reader->second, *page.rest);
  if (!page.follows_after) connections_.send(page.connection, proto::EventsEnd{page.job});
}

void EventDesk::follow(ConnectionId whose, proto::JobNumber job, uint64_t after) {
  const auto at = readers_.find(whose);
  if (at == readers_.end()) return;
  Reader& reader = at->second;
  reader.following[job] = after;
  if (const auto recent = recent_.find(job); recent != recent_.end()) {
    for (const auto& event : recent->second.events) {
      if (event->sequence <= reader.following.at(job)) continue;
      if (!send_event(whose, reader, *event)) {
        reader.following.erase(job);
        return;
      }
    }
  }
  // Where so many jobs had events that this one's last are not among the recent ones, the store has them.
  if (std::find(ended_.begin(), ended_.end(), job) == ended_.end()) return;
  want(whose, reader, {.job = job, .from_sequence = reader.following.at(job) + 1, .follow = true});
  reader.following.erase(job);
}

void EventDesk::on_event(const std::shared_ptr<const proto::JobEvent>& event) {
  for (auto& [whose, reader] : readers_) {
    const auto following = reader.following.find(event->job);
    if (following == reader.following.end() || event->sequence <= following->second) continue;
    if (!send_event(whose, reader, *event)) reader.following.erase(event->job);
  }
  keep(event);
}

void EventDesk::keep(const std::shared_ptr<const proto::JobEvent>& event) {
  if (is_end(*event)) {
    ended_.push_back(event->job);
    if (ended_.size() > kEndedJobsMax) ended_.pop_front();
  }
  Recent& recent = recent_[event->job];
  recent.events.push_back(event);
  recent.used = ++events_seen_;
  if (recent.events.size() > kRecentEventsMax) recent.events.pop_front();
  if (recent_.size() <= kRecentJobsMax) return;
  recent_.erase(std::min_element(recent_.begin(), recent_.end(),
                                 [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
}

// One that takes less than comes, or that would miss something, asks the store again from where it stands.
bool EventDesk::send_event(ConnectionId whose, Reader& reader, const proto::JobEvent& event) {
  uint64_t& last = reader.following.at(event.job);
  if (event.sequence != last + 1 || connections_.bytes_queued(whose) > kBehindMax) {
    want(whose, reader, {.job = event.job, .from_sequence = last + 1, .follow = true});
    return false;
  }
  last = event.sequence;
  connections_.send(whose, event);
  if (!is_end(event)) return true;
  connections_.send(whose, proto::EventsEnd{event.job});
  return false;
}

void EventDesk::end(ConnectionId whose) { readers_.erase(whose); }

}  // namespace weft::broker
