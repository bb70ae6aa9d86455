#include "ui/board.h"

#include <algorithm>

#include "ui/plan_page.h"
#include "ui/render.h"

namespace weft::ui {

namespace {

bool has_ended(proto::JobState state) { return state >= proto::JobState::Finished; }

using ByPeer = std::map<PeerId, const proto::PeerStatus*>;
ByPeer by_peer(const proto::PeerList& list) {
  ByPeer found;
  for (const proto::PeerStatus& peer : list.peers) found[peer.peer] = &peer;
  return found;
}

}  // namespace

void Board::note_changes(const proto::PeerList& peers, int64_t unix_ms) {
  const auto note = [&](const proto::PeerStatus& peer, std::string before, std::string after) {
    if (changes_.size() >= kChangesMax) changes_.pop_front();
    changes_.push_back({unix_ms, peer.name, peer.region, std::move(before), std::move(after)});
  };
  const ByPeer old = by_peer(peers_), fresh = by_peer(peers);
  for (const auto& [id, peer] : fresh) {
    const auto known = old.find(id);
    if (known == old.end())
      note(*peer, "", peer->state);
    else if (known->second->state != peer->state)
      note(*peer, known->second->state, peer->state);
  }
  for (const auto& [id, peer] : old)
    if (!fresh.contains(id)) note(*peer, peer->state, "");
}

Status Board::ask_overview(const Now& now) {
  WEFT_TRY(name_, broker_.connect());
  WEFT_TRY(jobs_, broker_.jobs(kJobsShown));
  WEFT_TRY(proto::PeerList peers, broker_.peers());
  if (has_peers_) note_changes(peers, now.unix_ms);
  peers_ = std::move(peers);
  has_peers_ = true;
  if (links_asked_ && now.clock < *links_asked_ + kLinksFresh) return {};
  WEFT_TRY(links_, broker_.links());
  links_asked_ = now.clock;
  return {};
}

void Board::refresh(const Now& now) {
  if (asked_ && now.clock < *asked_ + kFresh) return;
  const Status asked = ask_overview(now);
  asked_ = now.clock;
  away_.reset();
  if (asked)
    heard_unix_ms_ = now.unix_ms;
  else
    away_ = asked.error();
}

proto::JobNumber Board::choose_job(proto::JobNumber wanted) const {
  if (wanted != 0 || jobs_.jobs.empty()) return wanted;
  const auto running =
      std::ranges::find_if(jobs_.jobs, [](const auto& job) { return !has_ended(job.state); });
  return (running != jobs_.jobs.end() ? *running : jobs_.jobs.front()).job;
}

Board::Followed& Board::follow(proto::JobNumber job, Instant now) {
  if (!followed_.contains(job) && followed_.size() >= kHistoriesMax)
    followed_.erase(
        std::ranges::min_element(followed_, {}, [](const auto& entry) { return entry.second.looked; }));
  Followed& followed = followed_[job];
  followed.looked = now;
  return followed;
}

Status Board::refresh_job(proto::JobNumber number, Followed& job, Instant now) {
  if (job.is_asked && now < job.asked + kFresh) return {};
  const auto listed = std::ranges::find(jobs_.jobs, number, &proto::JobStatus::job);
  proto::JobStatus status;
  if (listed != jobs_.jobs.end()) {
    status = *listed;
  } else {
    WEFT_TRY(status, broker_.job(number));
  }
  const bool is_over = job.is_asked && job.status && has_ended(job.status->state) && has_ended(status.state);
  if (!is_over)
    WEFT_TRY_STATUS(broker_.events(number, job.history.next_sequence(),
                                   [&](const proto::JobEvent& event) { job.history.add(event); }));
  job.status = std::move(status);
  job.asked = now;
  job.is_asked = true;
  return {};
}

std::string Board::look(const Look& look, const Now& now) {
  refresh(now);
  Json json{{"now", now.unix_ms}};
  const proto::JobNumber number = choose_job(look.job);
  Json job;
  std::string missing;
  if (number != 0) {
    Followed& followed = follow(number, now.clock);
    const Status status = away_ ? Status() : refresh_job(number, followed, now.clock);
    if (!status) missing = status.error().message;
    if (followed.status) job = render_job(*followed.status, followed.history, look);
    if (!followed.status) followed_.erase(number);
  }
  json["broker"] = {{"address", broker_.address()},         {"software", name_ ? name_->software : ""},
                    {"is_admin", name_ && name_->is_admin}, {"is_there", !away_},
                    {"why", away_ ? away_->message : ""},   {"heard", heard_unix_ms_}};
  json["jobs"] = Json::array();
  for (const proto::JobStatus& status : jobs_.jobs) json["jobs"].push_back(render_job_line(status));
  json["more"] = jobs_.more;
  json["job"] = std::move(job);
  json["missing"] = missing;
  json["peers"] = render_peers(peers_);
  json["changes"] = render_changes(changes_);
  json["links"] = render_links(links_);
  return dump(json);
}

Result<std::string> Board::plan_page(proto::JobNumber job, const Now& now) {
  refresh(now);
  if (away_) return fail(*away_);
  Followed& followed = follow(job, now.clock);
  const Status status = refresh_job(job, followed, now.clock);
  if (!status) {
    followed_.erase(job);
    return fail(status.error());
  }
  return ui::plan_page(*followed.status, followed.history);
}

Status Board::stop(proto::JobNumber job) {
  WEFT_TRY_STATUS(broker_.connect());
  asked_.reset();
  if (const auto followed = followed_.find(job); followed != followed_.end())
    followed->second.is_asked = false;
  return broker_.stop(job);
}

Status Board::resume(proto::JobNumber job) {
  WEFT_TRY_STATUS(broker_.connect());
  asked_.reset();
  if (const auto followed = followed_.find(job); followed != followed_.end())
    followed->second.is_asked = false;
  return broker_.resume(job);
}

}  // namespace weft::ui
