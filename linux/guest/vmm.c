/*
 * A virtual machine monitor for a guest in a guest: KVM, one processor, memory at 0 and three serial ports.
 *
 *   vmm [-s] [-c EXITS] [-l] VMLINUX INITRD MEGABYTES COMMAND-LINE
 *
 * Boots the kernel by the 64-bit boot protocol (Documentation/arch/x86/boot.rst). What the guest writes to ttyS1 goes to
 * standard output, and what to ttyS0, its console, to standard error. The guest ends with a line on ttyS2: "exit N" or
 * "signal N". The exit status is N, or 128 + N, or 125 if the guest ends otherwise, or this program fails.
 *
 *   -s        Writes KVM's statistics to standard error at the end.
 *
 * For tests; each writes the statistics, too:
 *   -c EXITS  Changes what KVM knows of the guest's memory, at every so many exits to here. In turn: begins to log which
 *             pages the guest writes, three times checks the log against a copy of the memory, unmaps all memory here
 *             (it stays in its file), checks the log again, and stops logging.
 *   -l        Large pages for the upper half of memory, and logging up to the first 100 exits, so that they are not used at once.
 */
#include <asm/bootparam.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, LARGE_PAGE = 1 << 21, CPUID_ENTRIES = 256, FAILED = 125, LARGE_AFTER = 100 };
/* Where the kernel finds what it is given. */
enum { GDT = 0x500, BOOT_PARAMS = 0x7000, TABLES = 0x9000, COMMAND_LINE = 0x20000, LOW_END = 0x9f000, HIGH = 0x100000 };

static uint8_t *memory;
static uint64_t memory_bytes;
static int kvm, vm, vcpu;

static _Noreturn void fail(const char *format, ...)
{
	int error = errno;
	va_list arguments;

	fprintf(stderr, "vmm: ");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, error ? ": %s\n" : "\n", strerror(error));
	exit(FAILED);
}

static int control(int fd, unsigned long request, const char *name, void *argument)
{
	int result = ioctl(fd, request, argument);

	if (result < 0)
		fail("%s", name);
	return result;
}
#define CONTROL(fd, request, argument) control(fd, request, #request, (void *)(argument))

/* The place in the guest's memory of so many bytes. */
static void *at(uint64_t address, uint64_t bytes)
{
	errno = 0;
	if (bytes > memory_bytes || address > memory_bytes - bytes)
		fail("%#lx bytes at %#lx do not fit: give the guest more memory", bytes, address);
	return memory + address;
}

static const uint8_t *mapped(const char *path, size_t *bytes)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	struct stat about;
	void *text;

	if (file < 0 || fstat(file, &about))
		fail("%s", path);
	text = mmap(NULL, about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
	if (text == MAP_FAILED)
		fail("%s", path);
	*bytes = about.st_size;
	return text;
}

/* Copies the kernel's segments to where they are to be, and returns where it begins. */
static uint64_t load_kernel(const char *path)
{
	size_t bytes;
	const uint8_t *file = mapped(path, &bytes);
	const Elf64_Ehdr *header = (const void *)file;

	errno = 0;
	if (bytes < sizeof(*header) || memcmp(header->e_ident, ELFMAG, SELFMAG) || header->e_machine != EM_X86_64 ||
	    header->e_phoff > bytes || header->e_phnum * sizeof(Elf64_Phdr) > bytes - header->e_phoff)
		fail("%s is not a kernel for x86-64", path);
	for (const Elf64_Phdr *part = (const void *)(file + header->e_phoff), *end = part + header->e_phnum; part < end; part++) {
		if (part->p_type != PT_LOAD)
			continue;
		if (part->p_offset > bytes || part->p_filesz > bytes - part->p_offset)
			fail("%s is cut off", path);
		memcpy(at(part->p_paddr, part->p_filesz), file + part->p_offset, part->p_filesz);
	}
	return header->e_entry;
}

static void give_parameters(const char *initrd, const char *command_line)
{
	struct boot_params *given = at(BOOT_PARAMS, sizeof(*given));
	size_t bytes, length, most = LOW_END - COMMAND_LINE;
	const uint8_t *file = mapped(initrd, &bytes);
	uint64_t place = (memory_bytes - bytes) & -(uint64_t)PAGE;

	memcpy(at(place, bytes), file, bytes);
	/* On a busy machine the kernel cannot measure it. */
	length = snprintf(at(COMMAND_LINE, most), most, "%s tsc_early_khz=%d", command_line, CONTROL(vcpu, KVM_GET_TSC_KHZ, 0)) + 1;
	errno = 0;
	if (length > most)
		fail("the command line is too long");
	given->hdr.boot_flag = 0xaa55;
	memcpy(&given->hdr.header, "HdrS", 4);
	given->hdr.version = 0x20f;
	given->hdr.type_of_loader = 0xff;
	given->hdr.loadflags = LOADED_HIGH;
	given->hdr.cmd_line_ptr = COMMAND_LINE;
	given->hdr.cmdline_size = length;
	given->hdr.ramdisk_image = place;
	given->hdr.ramdisk_size = bytes;
	given->e820_table[0] = (struct boot_e820_entry){ .addr = 0, .size = LOW_END, .type = 1 };
	given->e820_table[1] = (struct boot_e820_entry){ .addr = HIGH, .size = memory_bytes - HIGH, .type = 1 };
	given->e820_entries = 2;
}

/* Puts the processor into 64-bit mode, with the first GB at the same addresses. */
static void enter_long_mode(uint64_t begin)
{
	static const uint64_t gdt[] = { 0, 0, 0xaf9b000000ffff, 0xcf93000000ffff };
	struct kvm_segment code = { .limit = ~0u, .selector = 0x10, .type = 11, .present = 1, .s = 1, .l = 1, .g = 1 };
	struct kvm_segment data = { .limit = ~0u, .selector = 0x18, .type = 3, .present = 1, .s = 1, .db = 1, .g = 1 };
	struct kvm_regs registers = { .rip = begin, .rsi = BOOT_PARAMS, .rflags = 2 };
	uint64_t *tables = at(TABLES, 3 * PAGE);
	struct kvm_sregs system;

	memcpy(at(GDT, sizeof(gdt)), gdt, sizeof(gdt));
	tables[0] = TABLES + PAGE + 3;
	tables[512] = TABLES + 2 * PAGE + 3;
	for (uint64_t i = 0; i < 512; i++)
		tables[1024 + i] = i * LARGE_PAGE + 0x83;
	CONTROL(vcpu, KVM_GET_SREGS, &system);
	system.cs = code;
	system.ds = system.es = system.ss = data;
	system.gdt.base = GDT;
	system.gdt.limit = sizeof(gdt) - 1;
	system.cr0 = 0x80000011; /* PG, ET, PE */
	system.cr3 = TABLES;
	system.cr4 = 0x20; /* PAE */
	system.efer = 0x500; /* LMA, LME */
	CONTROL(vcpu, KVM_SET_SREGS, &system);
	CONTROL(vcpu, KVM_SET_REGS, &registers);
}

static void *memory_of(bool large)
{
	/* A file, which keeps what is in it when it is unmapped; large pages, which need no file. */
	int file = large ? -1 : memfd_create("memory", MFD_CLOEXEC);
	uint8_t *found;

	if (!large && (file < 0 || ftruncate(file, memory_bytes)))
		fail("memory");
	found = mmap(NULL, memory_bytes + LARGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (found == MAP_FAILED)
		fail("memory");
	found += -(uintptr_t)found & (LARGE_PAGE - 1);
	found = mmap(found, memory_bytes, PROT_READ | PROT_WRITE,
		     MAP_FIXED | (large ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED), file, 0);
	if (found == MAP_FAILED || madvise(found, memory_bytes, MADV_NOHUGEPAGE))
		fail("memory");
	if (large && madvise(found + memory_bytes / 2, memory_bytes / 2, MADV_HUGEPAGE))
		fail("large pages");
	return found;
}

static void set_memory(bool logged)
{
	struct kvm_userspace_memory_region region = {
		.flags = logged ? KVM_MEM_LOG_DIRTY_PAGES : 0,
		.memory_size = memory_bytes,
		.userspace_addr = (uintptr_t)memory,
	};

	CONTROL(vm, KVM_SET_USER_MEMORY_REGION, &region);
}

/* A copy of the memory as the log of written pages has it, for -c. */
static uint8_t *copy;
static uint64_t *written;
static uint64_t checks, pages_written;

static void check_log(void)
{
	struct kvm_dirty_log log = { .dirty_bitmap = written };

	CONTROL(vm, KVM_GET_DIRTY_LOG, &log);
	for (uint64_t page = 0; page < memory_bytes / PAGE; page++) {
		uint64_t place = page * PAGE;

		if (written[page / 64] >> page % 64 & 1) {
			memcpy(copy + place, memory + place, PAGE);
			pages_written++;
		} else if (memcmp(copy + place, memory + place, PAGE)) {
			errno = 0;
			fail("page %#lx was written, and KVM did not log it", place);
		}
	}
	checks++;
}

static void change(void)
{
	static int step;

	switch (step++ % 7) {
	case 0:
		set_memory(true);
		memcpy(copy, memory, memory_bytes);
		break;
	case 4:
		if (madvise(memory, memory_bytes, MADV_DONTNEED))
			fail("unmapping memory");
		break;
	case 6:
		set_memory(false);
		break;
	default:
		check_log();
	}
}

static void write_all(int fd, const void *text, size_t length)
{
	for (const uint8_t *next = text; length;) {
		ssize_t put = write(fd, next, length);

		if (put < 0)
			fail("writing");
		next += put;
		length -= put;
	}
}

/* Ends with the status that the guest reports. */
static void take_status(uint8_t byte)
{
	static char line[32];
	static size_t length;
	int number;

	line[length++] = byte;
	if (byte != '\n' && length < sizeof(line) - 1)
		return;
	errno = 0;
	if (sscanf(line, "exit %d", &number) == 1)
		exit(number);
	if (sscanf(line, "signal %d", &number) == 1)
		exit(128 + number);
	fail("the guest ended with %.*s", (int)length, line);
}

/* A serial port as a 16450 has it, whose transmitter is always empty. */
struct serial {
	uint16_t port;
	int line, fd;
	uint8_t enabled, control, modem, scratch, divisor[2];
	bool pending;
};
static struct serial serials[] = {
	{ .port = 0x3f8, .line = 4, .fd = 2 },
	{ .port = 0x2f8, .line = 3, .fd = 1 },
	{ .port = 0x3e8, .line = 4, .fd = -1 },
};

/* Says whether the transmitter's interrupt is pending; interrupts are edges. */
static void interrupt(struct serial *serial, bool pending)
{
	struct kvm_irq_level level = { .irq = serial->line };

	if (serial->pending || pending)
		CONTROL(vm, KVM_IRQ_LINE, &level);
	serial->pending = pending && serial->enabled & 2;
	level.level = 1;
	if (serial->pending)
		CONTROL(vm, KVM_IRQ_LINE, &level);
}

static void serial_out(struct serial *serial, int number, uint8_t byte)
{
	bool divisor = serial->control & 0x80;

	switch (number) {
	case 0:
		if (divisor) {
			serial->divisor[0] = byte;
		} else if (!(serial->modem & 0x10)) { /* not looped back */
			if (serial->fd < 0)
				take_status(byte);
			else
				write_all(serial->fd, &byte, 1);
			interrupt(serial, true);
		}
		break;
	case 1:
		if (divisor) {
			serial->divisor[1] = byte;
		} else {
			serial->enabled = byte & 0xf;
			interrupt(serial, true);
		}
		break;
	case 3:
		serial->control = byte;
		break;
	case 4:
		serial->modem = byte;
		break;
	case 7:
		serial->scratch = byte;
		break;
	}
}

static uint8_t serial_in(struct serial *serial, int number)
{
	bool divisor = serial->control & 0x80, pending = serial->pending;

	switch (number) {
	case 0:
		return divisor ? serial->divisor[0] : 0;
	case 1:
		return divisor ? serial->divisor[1] : serial->enabled;
	case 2:
		if (pending)
			interrupt(serial, false);
		return pending ? 2 : 1;
	case 3:
		return serial->control;
	case 4:
		return serial->modem;
	case 5:
		return 0x60;
	case 6:
		if (serial->modem & 0x10) /* OUT2, OUT1, DTR, RTS as DCD, RI, DSR, CTS */
			return (serial->modem & 0xc) << 4 | (serial->modem & 2) << 3 | (serial->modem & 1) << 5;
		return 0xb0;
	default:
		return serial->scratch;
	}
}

static void port_access(struct kvm_run *run)
{
	uint8_t *data = (uint8_t *)run + run->io.data_offset;
	bool in = run->io.direction == KVM_EXIT_IO_IN;

	for (size_t i = 0; i < sizeof(serials) / sizeof(serials[0]); i++) {
		struct serial *serial = &serials[i];

		if (run->io.size != 1 || run->io.port - serial->port >= 8u)
			continue;
		for (uint32_t j = 0; j < run->io.count; j++) {
			if (in)
				data[j] = serial_in(serial, run->io.port - serial->port);
			else
				serial_out(serial, run->io.port - serial->port, data[j]);
		}
		return;
	}
	if (in)
		memset(data, 0xff, run->io.size * run->io.count);
}

static void write_statistics(void)
{
	static const char *const names[] = { "flat_tables", "flat_table_alloc", "flat_table_refused", "flat_table_demote",
					     "pages_4k", "pages_2m", "exits", "pf_taken" };

	fprintf(stderr, "kvm: checks %lu\nkvm: pages_written %lu\n", checks, pages_written);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char path[64], value[32] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/sys/kernel/debug/kvm/%s", names[i]);
		file = fopen(path, "r");
		if (file && fgets(value, sizeof(value), file))
			fprintf(stderr, "kvm: %s %s", names[i], value);
		if (file)
			fclose(file);
	}
}

static void create(void)
{
	struct kvm_pit_config pit = { 0 };
	struct {
		struct kvm_cpuid2 head;
		struct kvm_cpuid_entry2 entries[CPUID_ENTRIES];
	} cpuid = { .head.nent = CPUID_ENTRIES };

	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0)
		fail("/dev/kvm");
	vm = CONTROL(kvm, KVM_CREATE_VM, 0);
	CONTROL(vm, KVM_CREATE_IRQCHIP, 0);
	CONTROL(vm, KVM_CREATE_PIT2, &pit);
	vcpu = CONTROL(vm, KVM_CREATE_VCPU, 0);
	CONTROL(kvm, KVM_GET_SUPPORTED_CPUID, &cpuid);
	/* QEMU's processor lets a guest set XCR0 without KVM's knowledge, which then restores the former value. */
	for (uint32_t i = 0; i < cpuid.head.nent; i++) {
		if (cpuid.entries[i].function == 1)
			cpuid.entries[i].ecx &= ~(1u << 26); /* XSAVE, and with it AVX and protection keys */
	}
	CONTROL(vcpu, KVM_SET_CPUID2, &cpuid);
}

int main(int argc, char **argv)
{
	uint64_t every = 0, exits = 0;
	struct kvm_run *run;
	bool large = false, statistics = false;
	int option;

	while ((option = getopt(argc, argv, "c:ls")) != -1) {
		if (option == 'c')
			every = strtoull(optarg, NULL, 10);
		else if (option == 'l')
			large = true;
		else if (option == 's')
			statistics = true;
		else
			return FAILED;
	}
	argv += optind;
	if (argc - optind != 4 || !(memory_bytes = strtoull(argv[2], NULL, 10) << 20) || memory_bytes > 3ull << 30) {
		fprintf(stderr, "vmm: usage: vmm [-s] [-c EXITS] [-l] VMLINUX INITRD MEGABYTES COMMAND-LINE\n");
		return FAILED;
	}
	create();
	memory = memory_of(large);
	set_memory(large);
	give_parameters(argv[1], argv[3]);
	enter_long_mode(load_kernel(argv[0]));
	if (every) {
		copy = malloc(memory_bytes);
		written = calloc(memory_bytes / PAGE / 64 + 1, sizeof(*written));
		if (!copy || !written)
			fail("memory for a copy");
	}
	if (every || large || statistics)
		atexit(write_statistics);
	run = mmap(NULL, CONTROL(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	if (run == MAP_FAILED)
		fail("the processor's page");
	for (;;) {
		CONTROL(vcpu, KVM_RUN, 0);
		errno = 0;
		switch (run->exit_reason) {
		case KVM_EXIT_IO:
			port_access(run);
			break;
		case KVM_EXIT_MMIO: /* Nobody is there. */
			memset(run->mmio.data, 0xff, sizeof(run->mmio.data));
			break;
		case KVM_EXIT_SHUTDOWN:
			fail("the guest has stopped without a status");
		case KVM_EXIT_FAIL_ENTRY:
			fail("the processor does not enter the guest: %#llx", run->fail_entry.hardware_entry_failure_reason);
		default:
			fail("KVM stopped for reason %u, %u", run->exit_reason, run->internal.suberror);
		}
		exits++;
		if (every && exits % every == 0)
			change();
		if (large && exits == LARGE_AFTER)
			set_memory(false);
	}
}
