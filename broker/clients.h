// What users ask, and who of them is there. A job that has ended is answered for by the store, with the same
// right to see it.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "broker/events.h"
#include "broker/jobs/job_phases.h"
#include "broker/jobs/runs.h"
#include "broker/links/probes.h"

namespace weft::broker {

class Clients {
 public:
  // What a ban ends: the connection of a peer, with everything that follows from its loss.
  using Disconnect = std::function<void(Peer& peer, ErrorCode code, const std::string& why)>;
  Clients(const BrokerOptions& options, Step& step, Pool& pool, JobBook& book, Runs& runs,
          const Probes& probes, JobPhases& phases, Disconnect disconnect)
      : options_(options),
        step_(step),
        pool_(pool),
        book_(book),
        runs_(runs),
        probes_(probes),
        phases_(phases),
        disconnect_(std::move(disconnect)) {}

  // REQUIRES: it was admitted.
  void enter(ConnectionId connection, const PeerId& who, bool is_admin) {
    clients_[connection] = {who, is_admin};
  }
  void leave(ConnectionId connection) { clients_.erase(connection); }
  void leave(const PeerId& who, const std::string& why);  // with all its connections, which are told why
  size_t count() const { return clients_.size(); }
  size_t count_of(const PeerId& who) const;

  // Nothing comes of what was said over a connection that is not, or no more, a client's.
  void on_message(const Received& event);
  void on_submission(const SubmissionChecked& event);
  void on_reopened(const JobReopened& event);

 private:
  struct Client {
    PeerId who{};
    bool is_admin = false;
  };
  void answer(const Received& event, const Client& client);
  // What was asked is for jobs that have ended.
  void refuse_open(ConnectionId connection, const Job& job, const std::string& advice);
  void list_jobs(ConnectionId connection, const Client& client, const proto::ListJobs& request);
  void list_peers(ConnectionId connection, const Client& client);
  void ban(ConnectionId connection, const proto::BanPeer& request);
  void stop_job(Job& job);
  void note_unknown_peers(Job& job);
  void note_old_peers(Job& job);

  const BrokerOptions& options_;
  Step& step_;
  Pool& pool_;
  JobBook& book_;
  Runs& runs_;
  const Probes& probes_;
  JobPhases& phases_;
  const Disconnect disconnect_;
  std::map<ConnectionId, Client> clients_;
};

}  // namespace weft::broker
