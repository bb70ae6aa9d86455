// What hears a run beside its user: the options of the commands that follow one.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/listener.h"

namespace weft::cli {

struct HeardOptions {
  std::string tensorboard, notify;

  void add_to(CommandLine command);
  // `curves`: where the table goes; empty: there is none. `name`: of the job, for people.
  std::vector<std::unique_ptr<Listener>> listeners(const std::filesystem::path& curves,
                                                   const std::string& name) const;
};

}  // namespace weft::cli
