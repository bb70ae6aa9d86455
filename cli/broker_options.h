// What a broker can be told at its start: a row for each option, {name, help, parse into field}. Its option
// on the command line, its key in the configuration file and its help follow from the row.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "broker/service/broker_service.h"
#include "cli/command_line.h"

namespace weft::cli {

// As they were written on the command line, not looked at yet.
struct BrokerWords {
  std::string config;                         // a file that says more of them
  std::map<std::string, std::string> values;  // by the row's name; empty: not given
  std::string format = "text";                // of what is printed
  bool json() const { return format == "json"; }
};

// `words` is written when the command line is read, and has to live until then.
void add_broker_options(const CommandLine& command, BrokerWords& words);

// The words and, for what they leave out, the configuration file. Errors: InvalidArgument, which names the
// option; what reading the file says, with its places.
Status read_broker_options(const BrokerWords& words, broker::BrokerServiceOptions& options);

}  // namespace weft::cli
