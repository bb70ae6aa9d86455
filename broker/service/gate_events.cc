// Events of jobs for users: past ones a page at a time, as they are taken, and new ones as they come.
#include <algorithm>

#include "broker/service/gate_client.h"

namespace weft::broker {

namespace {
constexpr size_t kRecentEventsMax = 4096;  // of a job: bridges the way from the store to the stream
constexpr size_t kRecentJobsMax = 64;
constexpr size_t kEndedJobsMax = 4096;
constexpr size_t kPagesMax = 64;  // asked for and not sent, of one connection
constexpr size_t kBehindMax =
    256 << 10;  // bytes in its queue: then it gets what is new as it gets what is old

bool is_end(const proto::JobEvent& event) {
  return event.kind == proto::JobEventKind::State && event.state >= proto::JobState::Finished;
}
}  // namespace

void Gate::on_event(const std::shared_ptr<const proto::JobEvent>& event) {
  for (const auto& [number, client] : clients_) {
    const auto following = client->following.find(event->job);
    if (following == client->following.end() || event->sequence <= following->second) continue;
    if (!send_event(client, *event)) client->following.erase(event->job);
  }
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
bool Gate::send_event(const ClientPtr& client, const proto::JobEvent& event) {
  uint64_t& last = client->following.at(event.job);
  if (event.sequence != last + 1 || client->bytes_queued() > kBehindMax) {
    add_page(client, {.job = event.job, .from_sequence = last + 1, .follow = true});
    return false;
  }
  last = event.sequence;
  send(client, event);
  if (!is_end(event)) return true;
  send(client, proto::EventsEnd{event.job});
  return false;
}

void Gate::add_page(const ClientPtr& client, const proto::GetEvents& request) {
  client->pages.push_back(request);
  // Not at once: it may be called while clients are gone through, and refusing ends one.
  loop_.post([this, weak = std::weak_ptr(client)] {
    const auto here = weak.lock();
    if (!here || !clients_.contains(here->number)) return;
    if (here->pages.size() > kPagesMax)
      return refuse(here,
                    {ErrorCode::ResourceExhausted, "the events of too many jobs are asked for at once"});
    ask_for_page(here);
  });
}

// The next one when the one before has been taken: what the store holds is not put into a queue.
void Gate::ask_for_page(const ClientPtr& client) {
  if (client->pages.empty() || client->bytes_in_core > 0 || client->bytes_queued() > kBehindMax) return;
  const proto::GetEvents request = client->pages.front();
  client->pages.pop_front();
  to_core(client, Received{client->number, std::make_shared<const proto::Message>(request)}, 0);
}

void Gate::on_page(const ClientPtr& client, const EventsPage& page) {
  for (const proto::JobEvent& event : page.events) send(client, event);
  if (page.rest) return add_page(client, *page.rest);
  if (!page.follows_after) return send(client, proto::EventsEnd{page.job});
  follow(client, page.job, *page.follows_after);
}

void Gate::follow(const ClientPtr& client, proto::JobNumber job, uint64_t sequence) {
  while (const auto value = stream_->receive()) on_published(value);
  client->following[job] = sequence;
  if (const auto recent = recent_.find(job); recent != recent_.end()) {
    for (const auto& event : recent->second.events) {
      if (event->sequence <= client->following.at(job)) continue;
      if (!send_event(client, *event)) {
        client->following.erase(job);
        return;
      }
    }
  }
  // Where so many jobs had events that this one's last are not among the recent ones, the store has them.
  if (std::find(ended_.begin(), ended_.end(), job) == ended_.end()) return;
  add_page(client, {.job = job, .from_sequence = client->following.at(job) + 1, .follow = true});
  client->following.erase(job);
}

}  // namespace weft::broker
