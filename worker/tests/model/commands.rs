//! The commands of a process, as in `worker::commands`.

use shared::ids::{Incarnation, Slot};
use shared::store::commands::{Command, Verb};
use worker::scheduler::Input;

use crate::store::{Answer, Statement};
use crate::worker::Task;
use crate::world::{CallId, Event, Micros, SECOND, World};

const COMMAND_BUDGET: Micros = 5 * SECOND;

#[derive(Default)]
pub(crate) struct CommandsLoop {
    asked: CallId,
    timer: u64,
    found: Vec<Command>,
    next: usize,
    incarnation: Option<Incarnation>,
    stage: CommandStage,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum CommandStage {
    #[default]
    Idle,
    Reading,
    MakingDue,
    Removing,
}

impl World {
    pub(crate) fn poll_commands(&mut self, index: usize) {
        let lease = &self.processes[index].lease;
        let slots: Vec<Slot> = lease.owned.iter().copied().collect();
        let incarnation = lease.incarnation();
        if incarnation.is_none() || slots.is_empty() {
            return self.commands_rest(index);
        }
        let commands = &mut self.processes[index].commands;
        commands.incarnation = incarnation;
        commands.stage = CommandStage::Reading;
        self.commands_ask(index, Statement::Commands(slots));
    }

    fn commands_ask(&mut self, index: usize, statement: Statement) {
        let call = self.call(index, Task::Commands, statement, COMMAND_BUDGET);
        self.processes[index].commands.asked = call;
    }

    fn commands_rest(&mut self, index: usize) {
        let number = self.number();
        let commands = &mut self.processes[index].commands;
        commands.stage = CommandStage::Idle;
        commands.timer = number;
        let life = (index, self.processes[index].life);
        self.after(SECOND, Event::Timer(life, Task::Commands, number));
    }

    pub(crate) fn commands_timer(&mut self, index: usize, number: u64) {
        let commands = &self.processes[index].commands;
        if commands.timer == number && commands.stage == CommandStage::Idle {
            self.poll_commands(index);
        }
    }

    pub(crate) fn wake_commands(&mut self, index: usize) {
        let timer = self.processes[index].commands.timer;
        self.commands_timer(index, timer);
    }

    pub(crate) fn commands_hear(&mut self, index: usize, call: CallId, answer: Option<Answer>) {
        let commands = &mut self.processes[index].commands;
        if commands.asked != call {
            return;
        }
        match (commands.stage, answer) {
            (CommandStage::Reading, Some(Answer::Commands(found))) if !found.is_empty() => {
                commands.found = found;
                commands.next = 0;
                self.execute_commands(index);
            }
            (CommandStage::MakingDue, Some(_)) => {
                let command = commands.found[commands.next];
                commands.next += 1;
                let (slot, endpoint, tenant) = (command.slot, command.endpoint, command.tenant);
                // Not before: a probe that goes meanwhile is not the one that is asked for.
                self.policy.asked_to_retry(endpoint);
                self.input(
                    index,
                    Input::RetriesDue {
                        slot,
                        endpoint,
                        tenant,
                    },
                );
                self.execute_commands(index);
            }
            _ => self.commands_rest(index),
        }
    }

    fn execute_commands(&mut self, index: usize) {
        let boot = self.boot_time(index);
        let process = &mut self.processes[index];
        let me = process.commands.incarnation.unwrap();
        let Some(command) = process.commands.found.get(process.commands.next).copied() else {
            let done = process
                .commands
                .found
                .iter()
                .map(|command| command.id)
                .collect();
            process.commands.stage = CommandStage::Removing;
            return self.commands_ask(index, Statement::RemoveCommands(me, done));
        };
        match command.verb {
            Verb::Reload => {
                process.commands.next += 1;
                let (slot, endpoint) = (command.slot, command.endpoint);
                self.input(index, Input::Reload { slot, endpoint });
                self.execute_commands(index);
            }
            Verb::RetryNow(delivery) => {
                process.commands.stage = CommandStage::MakingDue;
                let now = process.clock.at(boot);
                self.commands_ask(index, Statement::MakeDue(me, delivery, now));
            }
        }
    }
}
