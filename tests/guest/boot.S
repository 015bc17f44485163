/*
 * The bare machine that runs the vectors: from multiboot's 32-bit mode to long mode with 4 or 5 levels, at the
 * top of the address space, and the few things that C cannot say. All pages are open to user mode, because the
 * vectors ask for accesses from there.
 *
 * The vectors lie at physical 64 MiB (see run.c); their second word says how many levels there are.
 */
#define HIGH 0xffffffff80000000
#define VECTORS 0x4000000
#define FULL 7
#define PAGE 0x80

#define CS64 0x08
#define SS 0x10
#define USER_SS 0x1b
#define USER_CS 0x23
#define TSS 0x28

    .section .multiboot, "a"
    .long 0x1badb002, 0, -0x1badb002

    .section .boot, "ax"
    .code32
    .globl start
start:
    cld
    movl $low_stack, %esp
    /* table[511] (and [0], for these instructions) -> upper: 1 GiB pages */
    movl $(lower_table + FULL), own_table
    movl $(upper_table + FULL), own_table + 511 * 8
    movl $(0 + FULL + PAGE), lower_table
    movl $(0 + FULL + PAGE), upper_table
    movl $(0x40000000 + FULL + PAGE), upper_table + 8
    movl $(0 + FULL + PAGE), upper_table + 510 * 8
    movl $(own_table + FULL), own_root5
    movl $(own_table + FULL), own_root5 + 511 * 8
    movl $0x20, %eax                    /* PAE */
    movl $own_table, %ebx
    cmpl $5, VECTORS + 8
    jne 1f
    orl $0x1000, %eax                   /* LA57 */
    movl $own_root5, %ebx
1:  movl %eax, %cr4
    movl %ebx, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x900, %eax                    /* LME, NXE */
    wrmsr
    movl $0x80010011, %eax              /* PG, WP, ET, PE */
    movl %eax, %cr0
    lgdt gdt_low
    ljmp $CS64, $1f
    .code64
1:  movabsq $2f, %rax
    jmp *%rax
    .globl gdt_low
    .balign 8
gdt_low:
    .word gdt_end - gdt - 1
    .long gdt - HIGH
    .long 0

    .text
2:  lgdt gdt_high(%rip)
    movl $SS, %eax
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    leaq stack_end(%rip), %rsp
    leaq tss(%rip), %rax
    leaq interrupt_stack_end(%rip), %rcx
    movq %rcx, 4(%rax)
    leaq tss_descriptor(%rip), %rcx
    movw %ax, 2(%rcx)
    shrq $16, %rax
    movb %al, 4(%rcx)
    movb %ah, 7(%rcx)
    shrq $16, %rax
    movl %eax, 8(%rcx)
    movl $TSS, %eax
    ltr %ax
    call run
3:  hlt
    jmp 3b

/*
 * long attempt(cr3, address, kind, user, value): 0 and `result`, or what went wrong and `code`. CR3 stays as it is
 * if `cr3` is 0.
 */
    .globl attempt
attempt:
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    movq %rsp, resume_stack(%rip)
    testq %rdi, %rdi
    jz 2f
    movq %rdi, %cr3
2:  movq %rsi, %rdi
    movq %rdx, %rsi
    movq %r8, %rdx
    testq %rcx, %rcx
    jnz 1f
    call access
    jmp succeeded
1:  pushq $USER_SS
    leaq user_stack_end(%rip), %rax
    pushq %rax
    pushq $2
    pushq $USER_CS
    leaq user(%rip), %rax
    pushq %rax
    iretq

user:
    call access
    int $0x80

/* Kind 0 reads, 1 writes, 2 executes. */
access:
    cmpq $1, %rsi
    je 1f
    ja 2f
    movq (%rdi), %rax
    ret
1:  movq %rdx, (%rdi)
    ret
2:  call *%rdi
    ret

/* long load(value, which): MOV to CR3, or to CR4 if `which` is not 0. */
    .globl load
load:
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    movq %rsp, resume_stack(%rip)
    testq %rsi, %rsi
    jnz 1f
    movq %rdi, %cr3
    jmp succeeded
1:  movq %rdi, %cr4

succeeded:
    movq %rax, result(%rip)
    xorl %eax, %eax
resume:
    movq resume_stack(%rip), %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret

    .globl on_page_fault, on_protection, on_call
on_page_fault:
    popq code(%rip)
    movq %cr2, %rax
    movq %rax, fault_address(%rip)
    movl $14, %eax
    jmp resume
on_protection:
    popq code(%rip)
    movl $13, %eax
    jmp resume
on_call:
    jmp succeeded

    .data
    .balign 8
gdt:
    .quad 0
    .quad 0x00209a0000000000            /* 64-bit code */
    .quad 0x0000920000000000            /* data */
    .quad 0x0000f20000000000            /* the user's data */
    .quad 0x0020fa0000000000            /* the user's code */
tss_descriptor:
    .quad 0x0000890000000067, 0
gdt_end:
gdt_high:
    .word gdt_end - gdt - 1
    .quad gdt
    .balign 8
tss:
    .skip 104

    .bss
    .balign 4096
    .globl code, fault_address, result, upper_table, own_table, own_root5
    .skip 4096
stack_end:
    .skip 4096
interrupt_stack_end:
    .skip 4096
user_stack_end:
resume_stack: .skip 8
code: .skip 8
fault_address: .skip 8
result: .skip 8

    .section .lowbss, "aw", @nobits
    .balign 4096
own_table: .skip 4096
upper_table: .skip 4096
lower_table: .skip 4096
own_root5: .skip 4096
    .skip 256
low_stack:
